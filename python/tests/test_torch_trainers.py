"""ridge.torch.trainers: TRL's own trainers, and verl's own fused heads, on a tiny Llama with and without ridge. Skipped without TRL
or verl: `pip install trl==1.16.0` and `pip install --no-deps verl==0.9.1`, of which single modules are imported. Its trainer needs
Ray and more: `pip install ray tensordict peft hydra-core codetiming uvicorn fastapi torchdata pillow accelerate datasets`."""
import importlib.util
import os
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
import ridge.torch.trainers as T  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch_common import leaves, near, rms, seed  # noqa: E402,F401

WORDS = "the cat dog bird sat ran flew on in under a mat tree house big small and then it was happy sad".split()


@pytest.fixture(scope="module")
def trl():
    return pytest.importorskip("trl", reason="TRL is not installed (pip install trl==1.16.0)")


def llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    vocab = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
                                   padding_side="left")


def rows(kind, count=8):
    g = torch.Generator().manual_seed(5)

    def words(n):
        return " " + " ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=g))

    if kind == "sft":
        return [{"text": words(4 + i)} for i in range(count)]
    if kind in ("grpo", "rloo"):
        return [{"prompt": words(3 + i % 3)} for i in range(count)]
    if kind == "kto":
        return [{"prompt": words(3), "completion": words(2 + i % 4), "label": i % 2 == 0} for i in range(count)]
    return [{"prompt": words(3), "chosen": words(2 + i % 4), "rejected": words(5 - i % 3)} for i in range(count)]


def reward(completions, **_):
    return [float(len(set(text.split()))) for text in completions]


def trained(trl, kind, folder, config, whole=False, **more):
    """(losses and metrics of three steps, the gradients of each)"""
    from datasets import Dataset
    from transformers import TrainerCallback
    gradients = []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    name = kind.upper()
    args = {"output_dir": str(folder), "max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1, "use_cpu": True,
            "report_to": "none", "save_strategy": "no", "seed": 7, "bf16": False, "learning_rate": 1e-2, "disable_tqdm": True,
            "gradient_checkpointing": False, **config}
    if kind in ("grpo", "rloo"):
        args.update(num_generations=2, max_completion_length=6)
        more = {"reward_funcs": reward, **more}
    model = llama()
    model.save_pretrained(folder / "model")  # some trainers load it again, as the reference
    model = type(model).from_pretrained(folder / "model")
    if whole:
        R.apply_ridge_to(model)
    trainer = getattr(trl, f"{name}Trainer")(model=model, args=getattr(trl, f"{name}Config")(**args), callbacks=[Look()],
                                             train_dataset=Dataset.from_list(rows(kind)), processing_class=tokenizer(), **more)
    trainer.train()
    return trainer.state.log_history, gradients


CASES = [("sft", {}), ("sft", {"whole": True}), ("sft", {"loss_type": "dft"}), ("dpo", {}), ("dpo", {"use_weighting": True}), ("kto", {}),
         ("grpo", {"beta": 0.05, "temperature": 0.8, "entropy_coef": 0.05}), ("grpo", {"cast_lm_head_to_fp32": True, "num_iterations": 2}),
         ("rloo", {})]


@pytest.mark.parametrize("kind,config", CASES)
def test_trl_trainers(trl, kind, config, tmp_path, monkeypatch):
    """Every step's loss, TRL's other metrics, and every parameter's gradient."""
    config, whole = dict(config), config.get("whole", False)
    config.pop("whole", None)
    want, reference = trained(trl, kind, tmp_path, config)
    calls = []
    own = T._trl
    monkeypatch.setattr(T, "_trl", lambda *args: calls.append(own(*args)) or calls[-1])
    with T.patch_trl():
        got, gradients = trained(trl, kind, tmp_path, config, whole)
    assert calls and all(out is not None for out in calls)
    compared = 0
    for step, other in zip(got, want):
        assert step.keys() == other.keys()
        for key in step:
            if not any(word in key for word in ("runtime", "per_second", "time", "mfu", "flos")) and isinstance(step[key], (int, float)):
                assert step[key] == pytest.approx(other[key], rel=2e-4, abs=2e-5), key
                compared += key.split("/")[0] in ("loss", "entropy", "logits", "mean_token_accuracy", "logps", "kl")
    assert compared >= 3 and len(gradients) == len(reference) == 3
    for step, other in zip(gradients, reference):
        assert step.keys() == other.keys() and len(step) > 10
        for name in step:
            assert rms(step[name], other[name]) < 2e-3 or (step[name] - other[name]).abs().max() < 1e-7, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap,scale,temperature,bias", [(None, 1.0, 1.0, False), (None, 0.25, 0.7, True), (5.0, 0.5, 1.3, False)])
def test_trl_function(trl, dtype, softcap, scale, temperature, bias):
    """Each output of the function that is replaced, and the gradients, against float64."""
    from trl.kernels.chunked_logprob import OPTIONAL_OUTPUTS
    hidden, weight, b = torch.randn(11, 32, dtype=dtype), torch.randn(50, 32, dtype=dtype) / 3, torch.randn(50, dtype=dtype)
    targets = torch.randint(50, (11,))
    one, two = leaves(hidden, weight, b), leaves(hidden.double(), weight.double(), b.double())
    outputs = OPTIONAL_OUTPUTS if softcap is None else tuple(name for name in OPTIONAL_OUTPUTS if name != "mean_logits")
    got = T._trl(*one[:2], one[2] if bias else None, targets, temperature, 16, softcap, scale, outputs)
    z = (two[0] @ two[1].T + (two[2] if bias else 0)) * scale
    z = (softcap * torch.tanh(z / softcap) if softcap else z) / temperature
    logp = z.log_softmax(-1)
    want = (logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1), (2 * logp).logsumexp(-1), z.mean(-1),
            z.argmax(-1) == targets)
    for g, w in zip(got[:4], want):
        if g is not None:
            near(g, w, 1e-5)
    assert torch.equal(got[4], want[4]) and (got[3] is None) == bool(softcap)
    up = torch.randn(2, 11)
    n = 3 if bias else 2
    for g, w in zip(torch.autograd.grad(got[:2], one[:n], list(up)), torch.autograd.grad(want[:2], two[:n], list(up.double()))):
        assert rms(g, w) < (1e-5 if dtype is torch.float32 else 5e-3)
    assert T._trl(*one[:2], None, targets, temperature, 16, None, 1.0, ("log_probs",))[1:] == (None,) * 4


def test_trl_function_is_its_own_elsewhere(trl):
    """float64, a softcap with mean logits, and after undo(): TRL's own function. Patched twice, or of another form: an error."""
    import trl.trainer.utils as utils
    own = utils._ChunkedLogProbFunction
    hidden, weight, targets = torch.randn(5, 8), torch.randn(20, 8), torch.randint(20, (5,))
    with T.patch_trl():
        for args in ((hidden.double(), weight.double(), None, targets, 1.0, 16), (hidden, weight, None, targets, 1.0, 16, 2.0, 1.0)):
            assert T._trl(*args) is None
            for got, want in zip(utils._ChunkedLogProbFunction.apply(*args), own.apply(*args)):
                assert torch.equal(got, want)
        assert utils._ChunkedLogProbFunction.apply(hidden[:0], weight, None, targets[:0], 1.0, 16)[0].shape == (0,)
        with pytest.raises(ridge.ArgumentError, match="TRL is patched already"):
            T.patch_trl()
    assert utils._ChunkedLogProbFunction is own
    utils._ChunkedLogProbFunction = torch.nn.Linear
    try:
        with pytest.raises(ridge.UnsupportedError, match="in this version of TRL"):
            T.patch_trl()
    finally:
        utils._ChunkedLogProbFunction = own


@pytest.fixture
def verl(monkeypatch):
    """verl's modules without its packages, which import Ray and more."""
    spec = importlib.util.find_spec("verl")
    if spec is None:
        pytest.skip("verl is not installed (pip install --no-deps verl==0.9.1)")
    for name in ("verl", "verl.utils", "verl.utils.experimental", "verl.utils.kernel", "verl.models", "verl.models.transformers"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(spec.submodule_search_locations[0], *name.split(".")[1:])]
        monkeypatch.setitem(sys.modules, name, package)
    from verl.models.transformers import dense_common
    yield dense_common
    for name in [name for name in sys.modules if name.split(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)


def ppo(out, advantage, coefficient):
    """verl's clipped objective with an entropy bonus, on what its forward gives."""
    ratio = (out.log_probs - out.log_probs.detach() + 0.1).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    return policy - coefficient * out.entropy.float().mean()


@pytest.mark.parametrize("autocast", [False, True])
def test_verl_torch_backend(verl, autocast):
    """verl's forward on a tiny Llama: log-probabilities, entropy and the gradients of every parameter."""
    model = llama()
    ids = torch.randint(3, 64, (2, 9))
    advantage = torch.randn(2, 9)

    def once():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = verl.forward_with_torch_backend(model, input_ids=ids, temperature=0.7, return_dict=True)
        ppo(out, advantage, 0.05).backward()
        return out, {name: p.grad.clone() for name, p in model.named_parameters()}

    want, reference = once()
    with T.patch_verl():
        got, gradients = once()
        assert got.log_probs.grad_fn.name() != want.log_probs.grad_fn.name()
    again, _ = once()
    assert torch.equal(again.log_probs, want.log_probs) and got.entropy.dtype == torch.float32
    tol = 0.03 if autocast else 1e-5  # verl rounds the logits, the entropy and the gradients of the logits to bf16
    near(got.log_probs, want.log_probs, tol)
    near(got.entropy, want.entropy, tol)
    for name in gradients:
        assert rms(gradients[name], reference[name]) < (0.05 if autocast else 1e-4), name


def test_verl_triton_backend_and_its_own(verl):
    """The "triton" backend needs a GPU in verl; patched, it runs everywhere. What ridge lacks stays verl's."""
    model = llama()
    ids = torch.randint(3, 64, (2, 9))
    with T.patch_verl():
        one = verl.forward_with_torch_backend(model, input_ids=ids, temperature=0.7, return_dict=True)
        two = verl.forward_with_triton_backend(model, input_ids=ids, temperature=0.7, return_dict=True)
        assert torch.equal(one.log_probs.flatten(), two.log_probs) and torch.equal(one.entropy.flatten(), two.entropy)
        from verl.utils.experimental.torch_functional import FusedLinearForPPO
        x, w = torch.randn(5, 8, dtype=torch.float64), torch.randn(20, 8, dtype=torch.float64)
        logprob, entropy = FusedLinearForPPO()(x.float().requires_grad_(), w.float(), torch.arange(5), 0.5)
        near(logprob, F.log_softmax(x @ w.T / 0.5, -1)[torch.arange(5), torch.arange(5)], 1e-5)
        assert T._verl(x, w, torch.arange(5)) is None and T._verl_triton(x.float(), w.float(), torch.arange(5), 1.0, "mean") is None
        with pytest.raises(ridge.ArgumentError, match="verl is patched already"):
            T.patch_verl()


# verl's FSDP engine, which its workers for PPO and GRPO train by, in one process on the CPU: verl asks its "platform" for the device.
# The head is the embedding's weight: sharded on its own it would reach verl's fused head as a DTensor, which that does not take.
ENGINE = """
import functools, os, sys
os.environ |= dict(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
import torch, transformers
sys.path.insert(0, sys.argv[1])
import ridge.torch.trainers as T
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
from tensordict import TensorDict
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA

class Cpu(PlatformCUDA):
    device_name, device_module = "cpu", torch.cpu
    current_device = lambda self: "cpu"
    is_available = lambda self: True
    communication_backend_name = lambda self: "gloo"

set_platform(Cpu())
import verl.models.transformers.monkey_patch as patches
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss
patches.is_trl_available = lambda: False  # it would patch a class that newer TRLs do not have

def batch(step):
    g = torch.Generator().manual_seed(step)
    ids = lambda lengths: [torch.randint(3, 64, (n,), generator=g) for n in lengths]
    prompts, answers = ids((3, 5, 2, 4)), ids((4, 2, 6, 3))
    mask = [torch.ones(len(a)) for a in answers]
    every = dict(input_ids=[torch.cat(pair) for pair in zip(prompts, answers)], prompts=prompts, responses=answers, response_mask=mask,
                 position_ids=[torch.arange(len(p) + len(a)) for p, a in zip(prompts, answers)],
                 loss_mask=[torch.cat((torch.zeros(len(p)), m)) for p, m in zip(prompts, mask)],
                 old_log_probs=[torch.randn(len(a), generator=g) / 4 - 4 for a in answers],
                 advantages=[torch.randn(1, generator=g).repeat(len(a)) for a in answers])
    data = TensorDict({k: torch.nested.nested_tensor(rows, layout=torch.jagged) for k, rows in every.items()}, batch_size=4)
    tensordict_utils.assign_non_tensor(data, use_remove_padding=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=2,
                                       use_fused_kernels=True, temperature=0.8, calculate_entropy=True, global_batch_size=4)
    return data

def train():
    model = HFModelConfig(path=sys.argv[2], load_tokenizer=False, use_fused_kernels=True, use_remove_padding=False,
                          override_config={"attn_implementation": "sdpa"}, enable_gradient_checkpointing=False,
                          fused_kernel_options={"impl_backend": "torch"})
    engine = FSDPEngineWithLMHead(model, FSDPEngineConfig(strategy="fsdp2", mixed_precision={"param_dtype": "fp32"}),
                                  FSDPOptimizerConfig(lr=1e-2, total_training_steps=3), CheckpointConfig())
    engine.initialize()
    actor = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=2, ppo_mini_batch_size=4, entropy_coeff=0.05)
    steps = []
    with engine.train_mode():
        for step in range(3):
            out = engine.train_batch(batch(step), functools.partial(ppo_loss, actor))
            gradients = {n: p.grad.full_tensor().clone() for n, p in engine.module.named_parameters()}
            steps.append((sum(out["loss"]), out["metrics"]["grad_norm"], gradients))
    return steps

want, own, calls = train(), T._verl, []
T._verl = lambda *args: calls.append(own(*args)) or calls[-1]
with T.patch_verl():
    got = train()
assert len(calls) == 6 and all(out is not None for out in calls), len(calls)  # two micro-batches a step
for (loss, norm, gradients), (loss_, norm_, reference) in zip(got, want):
    assert abs(loss - loss_) < 1e-5 and abs(norm - norm_) < 1e-4 * norm_ and norm_ > 0.1, (loss, loss_, norm, norm_)
    assert gradients.keys() == reference.keys() and len(gradients) > 15
    for name, g in gradients.items():
        assert (g - reference[name]).norm() <= 1e-4 * reference[name].norm() and reference[name].norm() > 0, name
print("trained", [loss for loss, _, _ in got])
"""


def test_verl_trainer(tmp_path):
    """Three steps of PPO with an entropy bonus by verl's own engine and loss: losses, gradient norms, every parameter's gradient."""
    for name in ("verl", "ray", "tensordict", "peft", "hydra", "codetiming", "uvicorn", "fastapi", "torchdata", "PIL"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    model = llama()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path)
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    run = subprocess.run([sys.executable, "-c", ENGINE, root, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and "trained" in run.stdout, run.stderr[-2000:]
