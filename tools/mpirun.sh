#!/usr/bin/env bash
# mpirun with the settings that a small or containerised machine needs: ranks may exceed cores, no rank is bound to a
# core, root is allowed, and no kernel-assisted copies (containers often forbid them).
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
exec mpirun --oversubscribe --bind-to none "$@"
