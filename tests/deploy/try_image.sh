# Builds the image of deploy/Dockerfile, by buildah or else by docker, and runs in it what pods run: `make test-image`.
# Its arguments are options of the build.
set -eu
image=localhost/turnwise-on-trial
if command -v buildah >/dev/null; then
    buildah build --isolation chroot -f deploy/Dockerfile -t $image "$@" .
    container=$(buildah from $image)
    trap 'buildah rm "$container" >/dev/null' EXIT
    run="buildah run --isolation chroot $container -- sh -eux"
else
    docker build -f deploy/Dockerfile -t $image "$@" .
    run="docker run --rm -i --read-only --tmpfs /tmp --tmpfs /home/turnwise:mode=1777 --shm-size 1g --cap-drop ALL $image sh -eux"
fi
$run <<'END'
test "$(id -u):$(id -g)" = 1000:1000
if touch /opt/turnwise/new; then exit 1; fi
if python -v -c 'import ray, turnwise' 2>&1 | grep '^# code object from /'; then exit 1; fi # it was compiled anew
turnwise doctor | grep '^ok *vocabulary'
turnwise migrate sqlite:////tmp/migrated.db
ray kuberay-autoscaler --help >/dev/null
python -c 'import ray.autoscaler._private.kuberay.run_autoscaler, ray.autoscaler.v2.monitor'
turnwise serve --demo --port 0 >/tmp/served.log 2>&1 &
for second in $(seq 120); do
    url=$(sed -n 's/^turnwise serves .* at \(http[^;]*\);.*/\1/p' /tmp/served.log)
    [ -z "$url" ] || break
    sleep 1
done
wget -qO- "$url/health"
wget -qO- --header 'Content-Type: application/json' --post-data '{"input": "Where is the Colosseum?"}' "$url/openai/v1/responses" |
    grep 'You said: Where is the Colosseum?'
kill $!
wait
END
