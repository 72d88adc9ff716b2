# %% [markdown]
# # Checkpoints: saved as a whole or not at all

# %%
import datapipes as dp
import numpy as np

state = {"weights": np.zeros((512, 512), np.float32), "step": np.array(0)}

for step in range(1, 4):
    state["weights"] += 1
    state["step"][...] = step
    dp.checkpoint.save("checkpoints", state, keep=2)

# %% [markdown]
# The newest two are left. Every MiB is checked when one is restored.

# %%
for entry in dp.checkpoint.list("checkpoints"):
    print(entry.number, entry.nbytes, entry.damage)

restored = dp.checkpoint.restore("checkpoints")
assert restored["step"] == 3 and (restored["weights"] == 3).all()

# %% [markdown]
# One that is damaged says so, and the one before it is still there:

# %%
newest = dp.checkpoint.list("checkpoints")[-1]
with dp.open(newest.path, "r+") as file:
    file.write(b"\xff" * 64, 100_000)
try:
    dp.checkpoint.restore("checkpoints")
except dp.Corrupt as error:
    print(error)
    restored = dp.checkpoint.restore("checkpoints", newest.number - 1)
assert restored["step"] == 2

# %% [markdown]
# What happens between two checkpoints goes into a log. A record is durable when `append_durable`
# returns, and opening the log after a crash finds the last of them:

# %%
with dp.Log("steps") as log:
    for step in range(4, 7):
        log.append_durable(f"step {step}".encode())
with dp.Log("steps") as log:
    print([record.decode() for number, record in log])
    assert log.read(3) == b"step 6"
