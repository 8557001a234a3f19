"""``pytest`` runs the tests, ``pytest --benchmark-only`` the benchmarks; a path on the command line stands as given."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", action="append", help="run the end-to-end tests over this engine only; may be repeated"
    )
    parser.addoption(
        "--soak", type=float, default=10.0, metavar="SECONDS", help="length of each soak test [default: %(default)g]"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("benchmark_only") and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.args[:] = [str(config.rootpath / "bench")]
