"""post_training.py: losses of post-training from ridge.torch.linear_logprobs, none of which makes the logits. hidden [batch,
tokens, hidden units] is the model's last layer, head [vocab, hidden units] its output weights, ids [batch, tokens] the token
that each position predicts, mask [batch, tokens] bool where it counts. Preference pairs: the chosen half of the batch first,
then the rejected ones in the same order."""
import torch
import torch.nn.functional as F

from ridge.torch import linear_logprobs, linear_weighted_nll


def grpo_loss(hidden, head, ids, mask, old_logprob, advantage, clip=0.2, entropy_bonus=0.0):
    """The clipped policy gradient with an advantage a sequence (GRPO, PPO); old_logprob [batch, tokens] of the sampling policy."""
    logprob, entropy = linear_logprobs(hidden, head, ids.masked_fill(~mask, -100), entropy=True)
    ratio, advantage = (logprob - old_logprob).exp(), advantage[:, None]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -((gain + entropy_bonus * entropy) * mask).sum() / mask.sum()


def on_policy_loss(hidden, head, ids, mask, advantage):
    """grpo_loss where this policy sampled the tokens itself, in one step on each batch: its ratio is 1, so that the gradients are
    known beforehand and three products make them instead of four. The value is another one, the gradients are the same."""
    weight = advantage[:, None] * mask / mask.sum()
    return linear_weighted_nll(hidden, head, ids.masked_fill(~mask, -100), weight)[0]


def dpo_loss(hidden, head, ids, mask, reference, beta=0.1):
    """Direct preference optimisation; reference [batch]: the frozen model's log-probability of each sequence."""
    logprob = linear_logprobs(hidden, head, ids.masked_fill(~mask, -100)).sum(-1)
    chosen, rejected = (logprob - reference).chunk(2)
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def orpo_loss(hidden, head, ids, mask, weight=0.1):
    """Odds-ratio preference optimisation: no reference model."""
    logprob = linear_logprobs(hidden, head, ids.masked_fill(~mask, -100)).sum(-1) / mask.sum(-1)
    chosen, rejected = logprob.chunk(2)
    log_odds = chosen - rejected - (torch.log(-torch.expm1(chosen)) - torch.log(-torch.expm1(rejected)))
    return -chosen.mean() - weight * F.logsigmoid(log_odds).mean()
