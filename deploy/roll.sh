#!/bin/sh
# Replaces the pods of a running Ray, one worker at a time and then the head, while sessions go on:
#
#   deploy/roll.sh                      so that they read secrets and variables anew
#   deploy/roll.sh IMAGE                with another image, of the same version of Ray
#
# NAMESPACE=turnwise names the namespace. It stops at the first pod that has no successor within 15 minutes.
set -eu
namespace=${NAMESPACE:-turnwise}
kubectl() { command kubectl -n "$namespace" "$@"; }

# A worker counts when Ray runs in it. It is Ready only with a replica of the service, which not each has.
started() {
    kubectl get pods -l "ray.io/node-type=$1" \
        -o 'jsonpath={range .items[*]}{.metadata.deletionTimestamp}/{.status.containerStatuses[*].started}{"\n"}{end}' |
        grep -c '^/true' || true
}

replace() { # the type of its node, the pod
    before=$(started "$1")
    kubectl delete "$2" # waits until it has gone
    left=${LOOKS:-180}
    until [ "$(started "$1")" -ge "$before" ]; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "$2 has no successor: look at kubectl -n $namespace get pods" >&2; exit 1; }
        sleep "${LOOK_S:-5}"
    done
}

if [ $# -gt 0 ]; then
    cluster=$(kubectl get raycluster -l ray.io/originated-from-cr-name=turnwise -o name)
    container=template/spec/containers/0/image
    kubectl patch "$cluster" --type json -p "[
        {\"op\": \"replace\", \"path\": \"/spec/headGroupSpec/$container\", \"value\": \"$1\"},
        {\"op\": \"replace\", \"path\": \"/spec/workerGroupSpecs/0/$container\", \"value\": \"$1\"}]"
fi
for pod in $(kubectl get pods -l ray.io/node-type=worker -o name); do
    replace worker "$pod"
done
for pod in $(kubectl get pods -l ray.io/node-type=head -o name); do
    replace head "$pod"
done
