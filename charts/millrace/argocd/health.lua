-- Health of an InferenceService for Argo CD: resource.customizations.health.millrace.dev_InferenceService.
-- Degraded goes before Progressing: a bad new revision behind healthy old replicas is Degraded.
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
if found.Degraded ~= nil and found.Degraded.status == "True" then
  return {status = "Degraded", message = found.Degraded.message}
end
if found.Ready ~= nil and found.Ready.reason == "ScaledToZero" and found.Ready.status ~= "True" then
  return {status = "Suspended", message = found.Ready.message}
end
if found.Ready ~= nil and found.Ready.status == "True" then
  local rollout = found.Progressing ~= nil and found.Progressing.reason or ""
  if rollout == "AwaitingPromotion" then
    return {status = "Suspended", message = found.Progressing.message}
  end
  if rollout ~= "RollingOut" and rollout ~= "Canary" then
    return {status = "Healthy", message = found.Ready.message}
  end
  health.message = found.Progressing.message
  return health
end
if found.Ready ~= nil then
  health.message = found.Ready.message
end
return health
