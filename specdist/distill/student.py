"""The student: some of the target's layers, its frozen embeddings, a smaller output head.

Knows the target's modules (Llama-like: ``model.embed_tokens``, ``model.layers``,
``model.norm``, ``lm_head``) and nothing of data or training. Called by ``train``,
``evaluate``, ``export`` and ``short``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from specdist.distill.data import Example


@torch.inference_mode()
def expected_counts(
    examples: Sequence[Example], teacher_head: Tensor, max_positions: int
) -> Tensor:
    """How often the target is expected to say each token.  # float64 [vocab]

    Sums the target's law at temperature 1 over at most about ``max_positions`` positions, evenly
    spread over the answers. Smoother than counting what was drawn, which matters in the tail.
    """
    counts = torch.zeros(len(teacher_head), dtype=torch.float64)
    total = sum(len(e.tokens) - e.answer_start for e in examples)
    stride = max(1, -(-total // max_positions))
    for offset, example in enumerate(examples):
        states = example.hidden[example.answer_start - 1 + offset % stride :: stride].float()
        counts += (states @ teacher_head.T).softmax(dim=-1).sum(dim=0)
    return counts


def choose_output_tokens(
    answer_counts: Tensor, prompt_counts: Tensor, special: Sequence[int], size: int
) -> Tensor:
    """The ids that the draft can put out, sorted and unique.  # int64 [size]

    All special ids, then the most frequent in answers (counted or expected); ties by prompts'
    counts, then the lowest id (in a BPE vocabulary low ids are the early, common merges).
    """
    vocab_size = len(answer_counts)
    if not len(set(special)) <= size <= vocab_size:
        raise ValueError(
            f"output size must be from {len(set(special))} to {vocab_size}, got {size}"
        )
    by_prompt = torch.sort(prompt_counts, descending=True, stable=True).indices
    order = by_prompt[torch.sort(answer_counts[by_prompt], descending=True, stable=True).indices]
    forced = torch.zeros(vocab_size, dtype=torch.bool)
    forced[list(special)] = True
    ranked = torch.cat([order[forced[order]], order[~forced[order]]])
    return ranked[:size].sort().values


def student_config(target: PretrainedConfig, num_layers: int) -> PretrainedConfig:
    """The target's config with fewer layers and an untied head."""
    config = copy.deepcopy(target)
    config.num_hidden_layers = num_layers
    config.tie_word_embeddings = False
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    return config


class Student(nn.Module):
    """A few layers, with logits over ``output_token_ids`` only."""

    output_token_ids: Tensor  # int64 [num_outputs]

    def __init__(self, model: PreTrainedModel, output_token_ids: Tensor) -> None:
        super().__init__()
        self.model = model.model
        self.lm_head = nn.Linear(model.config.hidden_size, len(output_token_ids), bias=False)
        self.config = model.config
        self.register_buffer("output_token_ids", output_token_ids)
        self.model.embed_tokens.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Last hidden states after the norm.  # [batch, length] -> [batch, length, width]

        Right padding needs no mask: under causal attention nothing looks at it.
        """
        return self.model(input_ids=inputs, use_cache=False).last_hidden_state

    def trained_parameters(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p.requires_grad]


def build_student(
    target: PreTrainedModel, layer_indexes: Sequence[int], output_token_ids: Tensor
) -> Student:
    """A student that starts from the target's layers ``layer_indexes``, norm and head rows."""
    num_layers = target.config.num_hidden_layers
    wrong = [i for i in layer_indexes if not 0 <= i < num_layers]
    if wrong:
        raise ValueError(f"layer indexes must be below {num_layers}, got {wrong}")
    config = student_config(target.config, len(layer_indexes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    student = Student(model, output_token_ids)
    for layer, index in zip(student.model.layers, layer_indexes, strict=True):
        layer.load_state_dict(target.model.layers[index].state_dict())
    student.model.norm.load_state_dict(target.model.norm.state_dict())
    student.model.embed_tokens = target.model.embed_tokens
    student.model.embed_tokens.requires_grad_(False)
    with torch.no_grad():
        student.lm_head.weight.copy_(target.lm_head.weight[output_token_ids])
    return student


@torch.no_grad()
def warm_start(student: Student, earlier: Student) -> int:
    """Take over an earlier student's weights; returns how many head rows both have.

    The output vocabularies may differ: rows that only the new one has stay as they are.
    """
    student.model.layers.load_state_dict(earlier.model.layers.state_dict())
    student.model.norm.load_state_dict(earlier.model.norm.state_dict())
    shared = torch.isin(student.output_token_ids, earlier.output_token_ids)
    rows = torch.searchsorted(earlier.output_token_ids, student.output_token_ids[shared])
    student.lm_head.weight[shared] = earlier.lm_head.weight[rows]
    return int(shared.sum())
