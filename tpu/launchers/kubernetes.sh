#!/usr/bin/env bash
# Several hosts under Kubernetes: prints an indexed Job, one pod for each host, and the service that names them.
#   export IMAGE=registry/albert_tf DATA_DIR=/data/records OUTPUT_DIR=/data/run
#   bash tpu/launchers/kubernetes.sh | kubectl apply -f -
# NAME, WORKERS, GPUS (of one pod) and CLAIM (a volume claim, ReadWriteMany, mounted at /data) may be set as well. The
# image has the project in its working directory and installed.
set -euo pipefail
: "${IMAGE:?is not set: a container image with the project in its working directory}"
NAME=${NAME:-albert-tf} WORKERS=${WORKERS:-4} GPUS=${GPUS:-8} CLAIM=${CLAIM:-albert-tf-data}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quoted() { printf "'%s'" "${1//\'/\'\'}"; }  # a YAML text
hosts=$(for ((i = 0; i < WORKERS; i++)); do printf '%s ' "$NAME-$i.$NAME"; done)
flags=""
for flag in "$@"; do flags+=", $(quoted "$flag")"; done
cat <<YAML
apiVersion: v1
kind: Service
metadata:
  name: $NAME
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    batch.kubernetes.io/job-name: $NAME
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $NAME
spec:
  completionMode: Indexed
  completions: $WORKERS
  parallelism: $WORKERS
  backoffLimit: 1000
  podFailurePolicy:
    rules:
      - action: FailJob  # a wrong flag stays wrong; all else starts again and goes on
        onExitCodes: {operator: In, values: [2]}
  template:
    spec:
      subdomain: $NAME
      restartPolicy: Never
      terminationGracePeriodSeconds: 300
      containers:
        - name: worker
          image: $(quoted "$IMAGE")
          command: ['bash', '-c', 'INDEX=\$JOB_COMPLETION_INDEX exec bash tpu/launchers/worker.sh "\$@"', 'worker.sh'$flags]
          env:
            - {name: HOSTS, value: $(quoted "${hosts% }")}
            - {name: DATA_DIR, value: $(quoted "$DATA_DIR")}
            - {name: OUTPUT_DIR, value: $(quoted "$OUTPUT_DIR")}
            - {name: PRESET, value: $(quoted "$PRESET")}
            - {name: GRAD_ACCUM_STEPS, value: $(quoted "${GRAD_ACCUM_STEPS:-4}")}
          resources:
            limits: {nvidia.com/gpu: $GPUS}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: memory, mountPath: /dev/shm}
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: $(quoted "$CLAIM")}
        - name: memory
          emptyDir: {medium: Memory}
YAML
