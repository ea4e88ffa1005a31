"""The only SQL of the project: one module a subject, literal statements, every guarantee a constraint or trigger."""
