"""The ``specdist`` command: what a person types. Nothing imports it but its entry point."""
