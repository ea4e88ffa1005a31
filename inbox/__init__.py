"""The inbox for webhooks: the one part that the internet reaches."""
