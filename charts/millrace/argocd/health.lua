-- Health of an InferenceService for Argo CD: resource.customizations.health.millrace.dev_InferenceService.
-- Degraded goes before Progressing: a bad new revision behind healthy old replicas is Degraded.
-- It names few reasons itself, so it also shows the reasons of a newer operator.
local health = {status = "Progressing", message = "waiting for the operator"}
if obj.status == nil or obj.status.conditions == nil then
  return health
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  health.message = "waiting for the operator to see the change"
  return health
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
local ready, progress, asked = found.Ready, found.Progressing, found.UpToDate
if found.Degraded ~= nil and found.Degraded.status == "True" then
  return {status = "Degraded", message = found.Degraded.message}
end
if ready ~= nil and ready.reason == "ScaledToZero" and ready.status ~= "True" then
  return {status = "Suspended", message = ready.message}
end
if ready == nil or ready.status ~= "True" then
  health.message = ready ~= nil and ready.message or health.message
  return health
end
if progress ~= nil and progress.reason == "AwaitingPromotion" then
  return {status = "Suspended", message = progress.message}
end
if progress ~= nil and progress.status == "True" then
  health.message = progress.message
  return health
end
if asked ~= nil and asked.status ~= "True" then
  health.message = asked.message
  return health
end
return {status = "Healthy", message = ready.message}
