"""What ``smg-fast COMMAND`` does: one module per command, each with ``add_arguments`` and ``run``.

Importing them is cheap: the gateway is imported by those that run it, when they do.
"""
