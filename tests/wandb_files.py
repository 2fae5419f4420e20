"""Read what W&B wrote offline."""

import json
import struct
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record, RunRecord


def read_wandb_file(path: Path) -> tuple[list[dict[str, float]], RunRecord | None]:
    """The history rows and the record of an offline W&B run: run_id, display_name, run_group, tags and more.

    The file is a LevelDB log: 7 bytes of head, then records of checksum, length, type and a protobuf.
    (W&B 0.31 has no reader in Python any more.) One block of 32 KiB is enough for these runs.
    """
    data, rows, run = path.read_bytes(), [], None
    assert data[:4] == b":W&B" and len(data) < 32768
    position = 7
    while position < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, position)
        assert kind == 1, "a whole record"
        record = Record.FromString(data[position + 7 : position + 7 + length])
        position += 7 + length
        if record.HasField("history"):
            items = record.history.item
            rows.append({v.key or "/".join(v.nested_key): json.loads(v.value_json) for v in items})
        elif record.HasField("run"):
            run = record.run
    return rows, run
