#!/usr/bin/env bash
# Runs mpirun with the settings for a small machine or a container: more ranks than cores, no binding to cores, root is
# allowed, and no kernel-assisted copies, which containers often forbid. For tests, benchmarks and programs of your own:
# `weft launch` starts `weft train`, and handles signals, failures and what mpirun leaves behind.
#
# MPIRUN names another launcher, for example mpiexec.mpich. Launchers other than Open MPI's need none of these settings.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
[[ -n ${MPIRUN:-} ]] && exec "$MPIRUN" "$@"
exec mpirun --oversubscribe --bind-to none "$@"
