"""What a run is asked to do: one pydantic model a notebook, filled from YAML, environment and overrides."""

from rlnb.params.dotenv import load_dotenv
from rlnb.params.loading import describe_params, dump_yaml, load_params
from rlnb.params.reading import parse_set
from rlnb.params.resolving import asks_network, check_machine, check_servers, resolve

__all__ = [
    "asks_network",
    "check_machine",
    "check_servers",
    "describe_params",
    "dump_yaml",
    "load_dotenv",
    "load_params",
    "parse_set",
    "resolve",
]
