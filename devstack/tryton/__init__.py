"""Tryton, a real ERP of other people's making, as the receiver of tests and demo: PostgreSQL, trytond, and a seed."""
