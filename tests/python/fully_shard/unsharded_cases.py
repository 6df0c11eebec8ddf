"""All cases of both interfaces against unsharded models."""

import container_cases
import external_gradient_cases
import frozen_cases
import gradient_cases
import grouped_module_cases
import module_cases
import optimizer_cases
import torch_only_cases
import training_cases
import value_cases
from sharded_support import cases_of
from unsharded_oracle import INTERFACES

_MODULES = [
    module_cases,
    training_cases,
    grouped_module_cases,
    gradient_cases,
    external_gradient_cases,
    container_cases,
    frozen_cases,
    value_cases,
    optimizer_cases,
    torch_only_cases,
]
CASES = cases_of(_MODULES)


def run(name: str, interface: str) -> None:
    CASES[name](INTERFACES[interface])
