"""Tests of torch.testing._internal.distributed.distributed_test that say nothing about a backend for CPUs, and why.

Each reason names what the test needs. A test that is not listed here runs, whatever backends torch's own list admits.
"""

_SYNC_BATCH_NORM = "needs CUDA: DDP refuses SyncBatchNorm in modules on the CPU"
_NCCL_GROUP = "needs nccl: the test makes a group of nccl itself"
_STREAMS = "needs an accelerator: torch waits for its streams or events, which the CPU does not have"
_SPARSE = "a limit of weft that docs/python.md names: it does not reduce sparse tensors"
_DEVICES = "needs CUDA: the test looks at the numbers of devices"

NOT_APPLICABLE = {
    "test_DistributedDataParallel": _DEVICES,
    "test_DistributedDataParallel_SyncBatchNorm": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_half": _SYNC_BATCH_NORM,
    "test_DistributedDataParallel_non_default_stream": _STREAMS,
    "test_SyncBatchNorm_process_group": _SYNC_BATCH_NORM,
    "test_average_parameters": _NCCL_GROUP,
    "test_batch_isend_irecv_mixed_backend_err": _NCCL_GROUP,
    "test_ddp_apply_optim_in_backward": _STREAMS,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": _STREAMS,
    "test_ddp_apply_optim_in_backward_ignored_params": _STREAMS,
    "test_ddp_device": _DEVICES,
    "test_ddp_has_finalized": "needs nccl: the test expects its watchdog to end ranks; PyTorch disables it",
    "test_ddp_hook_pickling_powerSGD": "torch.load refuses the file that the test writes (weights_only), whatever the backend",
    "test_ddp_inference": _SYNC_BATCH_NORM,
    "test_ddp_logging_data_cpu": "torch's DDP logs the name 'custom' for every backend outside of torch",
    "test_ddp_logging_data_gpu": _DEVICES,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none": _STREAMS,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none": _STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none": _STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none": _STREAMS,
    "test_ddp_profiling_execution_trace": "needs nccl: the test expects this name in the trace",
    "test_ddp_sync_bn_training_vs_eval": _SYNC_BATCH_NORM,
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": _SYNC_BATCH_NORM,
    # The models before that one pass. Four other tests of uneven inputs run.
    "test_ddp_uneven_inputs": "needs GPUs: a step of its largest convolution takes minutes on CPUs",
    "test_monitored_barrier_allreduce_hang": _NCCL_GROUP,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": _NCCL_GROUP,
    "test_nccl_high_priority_stream": _NCCL_GROUP,
    "test_sparse_all_reduce_sum": _SPARSE,
    "test_sparse_all_reduce_sum_cuda": _SPARSE,
    "test_sync_bn_logged": _SYNC_BATCH_NORM,
}
