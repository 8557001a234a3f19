"""What ``smg-fast COMMAND`` does: one module per command, each with ``add_arguments`` and ``run``.

Those of engines also have what ``serve`` needs to start one, see ``serve.Backend``; ``vllm`` and ``tokenspeed`` have
that alone. Importing them is cheap: the gateway is imported by those that run it, when they do.
"""
