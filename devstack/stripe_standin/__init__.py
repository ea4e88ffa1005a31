"""A stand-in for Stripe's refunds API: it keeps a journal of every effect and misbehaves on order."""
