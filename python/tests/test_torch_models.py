"""Hugging Face models whose parts ridge exchanged: losses and gradients are those of the model itself, whatever else was done
to it."""
import copy
import dis
import io
import pickle
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
import ridge  # noqa: E402
import ridge.torch as R  # noqa: E402
from ridge.torch import models  # noqa: E402
from torch_common import near, needs, on_devices, rms, seed  # noqa: E402,F401

VOCAB = 160
SMALL = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
MORE = {"gemma2": {"head_dim": 16, "final_logit_softcapping": 5.0}, "gemma3_text": {"head_dim": 16, "final_logit_softcapping": 4.0},
        "gemma": {"head_dim": 16}, "ministral": {"head_dim": 16}, "granite": {"logits_scaling": 3.0},
        "granitemoe": {"logits_scaling": 3.0, "num_local_experts": 4},
        "cohere": {"logit_scale": 0.25}, "cohere2": {"logit_scale": 0.25}, "glm": {"head_dim": 16}, "glm4": {"head_dim": 16},
        "mixtral": {"num_local_experts": 4}, "gpt_oss": {"num_local_experts": 4, "head_dim": 16},
        "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0], "head_dim": 16},
        "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
        "olmoe": {"num_experts": 4, "num_experts_per_tok": 2}}


def tiny(kind, device="cpu", **more):
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    config = transformers.AutoConfig.for_model(kind, **SMALL, **MORE.get(kind, {}), **more)
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(config).to(device).train()


def batch(device="cpu"):
    ids = torch.randint(1, VOCAB, (2, 24), device=device)
    labels = ids.clone()
    labels[0, :5] = -100
    return {"input_ids": ids, "labels": labels}


def trained(model, inputs, **options):
    """The output, and the gradients of its loss by name."""
    out = model(**inputs, **options)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    grads = torch.autograd.grad(out.loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    return out, dict(zip(names, grads))


def alike(got, want, tolerance=1e-4):
    near(got[0].loss, want[0].loss, 1e-5)
    assert type(got[0]) is type(want[0]) and got[1].keys() == want[1].keys()
    for name, g in want[1].items():
        assert (g is None) == (got[1][name] is None), name
        assert g is None or rms(got[1][name], g) < tolerance or (g.norm() < 1e-6 and got[1][name].norm() < 1e-6), name


@on_devices
@pytest.mark.parametrize("kind", models.DENSE + models.MOE)
def test_the_loss_is_the_models_own(device, kind, needs):
    """Of every type that may be patched: softcap, scaling, the router's loss, a given number of items, no label at all."""
    model, inputs = tiny(kind, device), batch(device)
    ways = [{}, {"num_items_in_batch": torch.tensor(17, device=device)}, {"num_items_in_batch": 17}]
    if kind in models.MOE:
        model.config.output_router_logits, model.router_aux_loss_coef = True, 0.5
        try:
            model(**inputs)
            ways += [{"output_router_logits": True}, {"output_router_logits": False}]
        except AttributeError:  # GraniteMoe of transformers 5.17 gets no router logits from its layers
            model.config.output_router_logits = False
    wanted = [trained(model, inputs, **way) for way in ways]
    ignored = {**inputs, "labels": torch.full_like(inputs["labels"], -100)}
    assert model(**ignored).loss.isnan()
    patch = R.apply_ridge_to(model)
    names = {models._ours(module) for module in model.modules()} - {None}
    assert names == ({"_head_forward", "_causal_forward"} |
                     ({"_mlp_forward"} if kind not in ("mixtral", "gpt_oss", "olmoe", "granitemoe") else set()) |
                     ({"_norm_forward"} if kind not in ("cohere", "cohere2", "olmo") else set()) |  # these have layer norms
                     ({"_rotary_forward"} if kind in models.PAIRS else set()))
    for way, want in zip(ways, wanted):
        got = needs(lambda: trained(model, inputs, **way))
        assert got[0].logits is None
        alike(got, want)
        if getattr(want[0], "aux_loss", None) is not None:
            near(got[0].aux_loss, want[0].aux_loss, 1e-6)
            assert want[0].aux_loss > 0 and len(got[0].router_logits) == len(want[0].router_logits)
    assert model(**ignored).loss.isnan()
    model.eval()
    assert model(**inputs).logits is not None
    model.config.output_router_logits = False  # with which transformers 5.17 cannot generate
    model.generate(inputs["input_ids"][:, :4], max_new_tokens=3, do_sample=False)
    patch.undo()
    assert not any("forward" in module.__dict__ for module in model.modules())
    model.config.output_router_logits = len(ways) > 3
    assert torch.equal(trained(model.train(), inputs)[0].loss, wanted[0][0].loss)


@on_devices
def test_other_ways_to_call(device):
    """What the patched forward does not do itself is the model's own forward's: tuples, kept logits, labels made elsewhere."""
    model, inputs = tiny("llama", device), batch(device)
    shifted = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
    other = {"labels": torch.where(inputs["labels"] == -100, 7, inputs["labels"]), "ignore_index": 7}
    ways = [{"return_dict": False}, {"logits_to_keep": 24}, other, {"shift_labels": shifted},
            {"labels": None, "shift_labels": shifted}]
    before = [model(**{**inputs, **way}) for way in ways]
    R.apply_ridge_to(model)
    after = [model(**{**inputs, **way}) for way in ways]
    assert torch.equal(after[0][0], before[0][0]) and torch.equal(after[1].loss, before[1].loss) and after[1].logits is not None
    near(after[2].loss, before[2].loss, 1e-5)
    near(after[3].loss, before[3].loss, 1e-5)
    assert after[4].loss is None and after[4].logits is not None


def test_what_cannot_be_patched_is_refused():
    class Own(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.loss = out.loss * 2
            return out

    class OwnMlp(type(tiny("llama").model.layers[0].mlp)):
        def forward(self, x):
            return torch.nn.functional.dropout(super().forward(x), 0.5)

    own, odd, hooked, mlp = Own(tiny("llama").config), tiny("llama"), tiny("llama"), tiny("llama")
    odd.config.hidden_act = "tanh"
    hooked.model.layers[1].mlp.forward = hooked.model.layers[1].mlp.forward  # as accelerate's hooks do
    mlp.model.layers[0].mlp.__class__ = OwnMlp
    for model, text in ((torch.nn.Linear(2, 2), "no Hugging Face model of a type that ridge knows"),
                        (tiny("starcoder2"), "config.model_type is 'starcoder2'"), (own, "Own has a forward of its own"),
                        (odd, "activation is 'tanh'"), (hooked, "has a forward on the instance"), (mlp, "OwnMlp has a forward"),
                        (tiny("llama").model, "not a causal language model")):
        before = [dict(module.__dict__) for module in model.modules()]
        with pytest.raises(ridge.ArgumentError, match=text):
            R.apply_ridge_to(model)
        assert [dict(module.__dict__) for module in model.modules()] == before  # nothing is half done
    model = tiny("llama")
    patch = R.patch_llama(model, norm=False, rope=False, loss=False)
    with pytest.raises(ridge.ArgumentError, match="LlamaMLP is patched already"):
        R.apply_ridge_to(model)
    R.apply_ridge_to(model, mlp=False, norm=False, rope=False).undo()
    with pytest.raises(ridge.ArgumentError, match="LlamaMLP is patched already"):
        R.apply_ridge_to(model, norm=False, rope=False)
    patch.undo()
    assert not any("forward" in module.__dict__ for module in model.modules())


class Doubled(torch.Tensor):
    """A weight that is not what its memory says, as of a quantised or sharded one."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            return function(args[0], args[1].as_subclass(torch.Tensor) * 2, *args[2:])
        return super().__torch_function__(function, types, args, kwargs or {})


def hook(head):
    head.register_forward_hook(lambda module, args, out: out * 2)


def subclass(head):
    head.weight = torch.nn.Parameter(head.weight.detach().as_subclass(Doubled))


@pytest.mark.parametrize("change", [hook, subclass])
def test_a_head_that_is_more_than_its_weight(change):
    """Changed after the patch: the loss follows, one warning says why, and the gradients are the model's own."""
    one, two, inputs = tiny("llama", tie_word_embeddings=False), tiny("llama", tie_word_embeddings=False), batch()
    R.apply_ridge_to(one)
    change(one.lm_head)
    change(two.lm_head)
    want = trained(two, inputs)
    with pytest.warns(UserWarning, match="is made from logits, by the model itself: lm_head is not a plain"):
        alike(trained(one, inputs), want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(one, inputs)


def test_resized_embeddings_and_a_loss_of_ones_own():
    one, two, inputs = tiny("llama"), tiny("llama"), batch()
    R.apply_ridge_to(one)
    for model in (one, two):
        torch.manual_seed(5)
        model.resize_token_embeddings(VOCAB + 8, mean_resizing=False)  # lm_head is a new layer
    alike(trained(one, inputs), trained(two, inputs))
    assert one(**inputs).logits is None
    for model in (one, two):
        model.loss_function = lambda logits, labels, vocab_size, **_: logits.float().square().mean()
    with pytest.warns(UserWarning, match="its loss_function is not"):
        alike(trained(one, inputs), trained(two, inputs))


def lora(model, targets, **more):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(9)
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **more))


@pytest.mark.parametrize("targets,more", [(["q_proj", "down_proj"], {}), (["gate_proj", "lm_head"], {}),
                                          (["q_proj"], {"modules_to_save": ["lm_head"]})])
@pytest.mark.parametrize("order", ["patched first", "patched after"])
def test_peft(targets, more, order):
    """Adapters before or after the patch, on lm_head too: the loss and every adapter's gradient."""
    inputs, want = batch(), lora(tiny("llama", tie_word_embeddings=False), targets, **more)
    model = tiny("llama", tie_word_embeddings=False)
    if order == "patched first":
        R.apply_ridge_to(model)
    model = lora(model, targets, **more)
    if order == "patched after":
        R.apply_ridge_to(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = trained(model.train(), inputs)
    alike(got, trained(want.train(), inputs))
    head = "lm_head" in targets or more
    assert (got[0].logits is None) != bool(head)


def test_saved_copied_and_spawned(tmp_path):
    """torch.save, pickle, deepcopy and another process keep the patch, and a patch saved with its model undoes it there."""
    model, inputs = tiny("llama"), batch()
    patch = R.apply_ridge_to(model)
    want = trained(model, inputs)
    held = io.BytesIO()
    torch.save(model, held)
    held.seek(0)
    for other in (copy.deepcopy(model), torch.load(held, weights_only=False), pickle.loads(pickle.dumps(model))):
        for name, module in other.named_modules():
            forward = module.__dict__.get("forward")
            assert forward is None or forward.args[0] is module, name  # its own parameters, not the first model's
        alike(trained(other, inputs), want, 1e-6)
        assert other(**inputs).logits is None
    twin, undo = pickle.loads(pickle.dumps((model, patch)))
    undo.undo()
    assert not any("forward" in module.__dict__ for module in twin.modules()) and "forward" in model.__dict__
    torch.save((model, inputs), tmp_path / "both")
    done = subprocess.run([sys.executable, "-c", f"""
import sys
sys.path[:0] = {sys.path!r}
import torch
model, inputs = torch.load({str(tmp_path / "both")!r}, weights_only=False)
print(repr(model(**inputs).loss.item()))"""], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    near(torch.tensor(float(done.stdout)), want[0].loss, 1e-6)


def test_compiled():
    model, inputs = tiny("qwen3"), batch()
    want = trained(model, inputs)
    R.apply_ridge_to(model)
    alike(trained(torch.compile(model, backend="aot_eager", fullgraph=True), inputs)[:1] + (want[1],), want)
    mlp, x = model.model.layers[0].mlp, torch.randn(3, 64)
    near(torch.compile(mlp, fullgraph=True, backend="aot_eager")(x), mlp(x), 1e-6)


def test_nothing_that_is_compiled_imports():
    """PyTorch 2.11's Dynamo refuses an import of a module that loads lazily, as transformers does: only patching imports."""
    importing = {name for name, f in vars(models).items() if getattr(f, "__module__", None) == models.__name__ and
                 hasattr(f, "__code__") and any(i.opname == "IMPORT_NAME" for i in dis.get_instructions(f))}
    assert importing == {"_patch_loss"}


def test_checkpointed():
    model, inputs = tiny("phi3"), batch()
    want = trained(model, inputs)
    model.gradient_checkpointing_enable()
    R.apply_ridge_to(model)
    alike(trained(model, inputs), want)


@on_devices
@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "gemma2"])
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16])
def test_norms_have_the_models_dtypes(device, kind, weight, x):
    """With weights and activations of different dtypes too, as under autocast; float64 stays the model's own."""
    norm = tiny(kind, device).model.norm.to(weight)
    torch.nn.init.normal_(norm.weight)
    inputs = torch.randn(3, 5, 64, device=device, dtype=x)
    want = norm(inputs)
    patch = models.Patch()
    models._patch_norm(patch, norm)
    got = norm(inputs)
    assert got.dtype == want.dtype
    near(got, want, 2**-7 if torch.bfloat16 in (weight, x) else 1e-5)
    assert kind != "llama" or norm.double()(inputs.double()).dtype == torch.float64


@on_devices
@pytest.mark.parametrize("kind", ["llama", "glm4"])
def test_rope_of_given_positions(device, kind):
    """Positions of each sequence, at lengths where f32 still holds the angle; another model of the same Python module keeps its
    own rotation, and so does one of YaRN."""
    model, inputs = tiny(kind, device), batch(device)
    other = tiny(kind, device).eval()
    inputs["position_ids"] = torch.stack([torch.arange(24), torch.arange(24) * 3 % 50]).to(device)
    want, untouched = trained(model, inputs), other(**inputs).logits
    patch = R.apply_ridge_to(model, mlp=False, norm=False, loss=False)
    assert {models._ours(module) for module in model.modules()} == {"_rotary_forward", None}
    alike(trained(model, inputs), want)
    assert torch.equal(other(**inputs).logits, untouched)
    patch.undo()
    assert torch.equal(trained(model, inputs)[0].logits, want[0].logits)
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
    model = tiny("llama", device, **{"rope_parameters" if int(transformers.__version__.split(".")[0]) > 4 else "rope_scaling": yarn})
    R.apply_ridge_to(model, mlp=False, norm=False, loss=False)
    assert {models._ours(module) for module in model.modules()} == {None}


@on_devices
def test_swap_linear(device, needs):
    model = tiny("llama", device).to(torch.bfloat16).train()
    ids = torch.randint(1, VOCAB, (4, 40), device=device)
    want = model(input_ids=ids, labels=ids).loss
    patch = R.swap_linear(model)
    assert isinstance(model.model.layers[0].mlp.up_proj, R.Fp8Linear) and type(model.lm_head) is torch.nn.Linear
    R.apply_ridge_to(model)
    loss = needs(lambda: model(input_ids=ids, labels=ids).loss)
    near(loss, want, 2e-2)
    needs(loss.backward)
    assert all(p.grad is not None for p in model.parameters())
    patch.undo()
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
