"""The generated gRPC code is that of proto/specdist.proto, and its numbers stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specdist.api.generated import specdist_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]
GENERATED = Path("specdist/api/generated")


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    (tmp_path / GENERATED).mkdir(parents=True)
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"-I{GENERATED}=proto"),
        *(f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", "proto/specdist.proto"),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("specdist_pb2.py", "specdist_pb2_grpc.py"):
        fresh = (tmp_path / GENERATED / name).read_text()
        assert fresh == (ROOT / GENERATED / name).read_text(), "run the command of CONTRIBUTING.md"


def test_released_field_numbers() -> None:
    def numbers(message: type) -> dict[str, int]:
        return {f.name: f.number for f in message.DESCRIPTOR.fields}

    assert pb.DESCRIPTOR.package == "specdist.v1"
    assert numbers(pb.GenerateRequest) == {
        "request_id": 1,
        "prompt": 2,
        "chat": 3,
        "token_ids": 4,
        "sampling": 5,
        "speculation": 6,
        "logprobs": 7,
        "model": 8,
    }
    assert list(numbers(pb.SamplingParams)) == [
        *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty"),
        *("frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "stop"),
        *("stop_token_ids", "logit_bias", "structured_outputs"),
    ]
    assert numbers(pb.StructuredOutputs) == {
        "json": 1,
        "json_object": 2,
        "regex": 3,
        "choice": 4,
    }
    assert numbers(pb.GenerateChunk) == {
        "request_id": 1,
        "text": 2,
        "token_ids": 3,
        "logprobs": 4,
        "num_draft_tokens_accepted": 5,
        "finish_reason": 6,
        "usage": 7,
        "speculation": 8,
        "seed": 9,
    }
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    assert [m.name for m in service.methods] == [
        *("Generate", "GenerateStream", "Tokenize", "Detokenize", "GetModelInfo")
    ]
