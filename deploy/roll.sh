#!/bin/sh
# Replaces the pods of a running Ray, one worker at a time and then the head, while sessions go on:
#
#   deploy/roll.sh                      so that they read secrets and variables anew
#   deploy/roll.sh IMAGE                with another image, of the same version of Ray; pods that have it stay
#
# NAMESPACE=turnwise names the namespace. It stops if a pod has not gone, or has no successor, within 15 minutes.
set -eu
namespace=${NAMESPACE:-turnwise}
kubectl() { command kubectl -n "$namespace" "$@"; }

# A worker counts when Ray runs in it. It is Ready only with a replica of the service, which not each has.
started() {
    kubectl get pods -l "ray.io/node-type=$1" -o "jsonpath={range .items[*]}{.metadata.deletionTimestamp}/\
{.status.containerStatuses[?(@.name==\"ray-$1\")].started}{\"\n\"}{end}" | grep -c '^/true' || true
}

wanted() { # how many there should be: the autoscaler may change that meanwhile
    [ "$1" = head ] && echo 1 || kubectl get raycluster -o 'jsonpath={.items[0].spec.workerGroupSpecs[0].replicas}'
}

replace() { # the type of its node, the pod
    kubectl delete --ignore-not-found --timeout=15m "pod/$2" # waits until it has gone
    left=${LOOKS:-180}
    until [ "$(started "$1")" -ge "$(wanted "$1")" ]; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "$2 has no successor: look at kubectl -n $namespace get pods" >&2; exit 1; }
        sleep "${LOOK_S:-5}"
    done
}

if [ $# -gt 0 ]; then
    container=template/spec/containers/0/image
    kubectl patch "$(kubectl get raycluster -o name)" --type json -p "[
        {\"op\": \"replace\", \"path\": \"/spec/headGroupSpec/$container\", \"value\": \"$1\"},
        {\"op\": \"replace\", \"path\": \"/spec/workerGroupSpecs/0/$container\", \"value\": \"$1\"}]"
fi
for type in worker head; do
    for pod in $(kubectl get pods -l "ray.io/node-type=$type" -o "jsonpath={range .items[*]}{.metadata.name}=\
{.spec.containers[?(@.name==\"ray-$type\")].image}{\"\n\"}{end}"); do
        [ $# -gt 0 ] && [ "${pod#*=}" = "$1" ] || replace "$type" "${pod%%=*}"
    done
done
