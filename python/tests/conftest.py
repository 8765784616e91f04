import os
import sys

# torch.compile's caches on disk know an op by its name and schema, not by this checkout's version of it.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))  # the source tree's package
