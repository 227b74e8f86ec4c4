"""The words between broker and worker processes, in a module that imports nothing."""

READY, BROKEN, ANSWER, REGISTERED = b"ready", b"broken", b"answer", b"registered"
JOB, REGISTER = b"job", b"register"
