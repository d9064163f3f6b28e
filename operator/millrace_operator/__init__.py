"""The controller: turns InferenceServices into pods and replica counts. It never imports torch.

From a watch to a write: `controller/` has the watch, the cache, the queue, the plan and the writer. What a
plan decides is in `model/`, `rollout/`, `scaling/` and `status/`; `render/` has the objects that come of it.
"""
