"""Every rule, listed by hand: what is not here is not checked."""

from __future__ import annotations

from app.checks.base import Check
from app.checks.rules.batched_tokens import BatchedTokens
from app.checks.rules.capacity import CapacityWithoutEviction
from app.checks.rules.chunk_size import ChunkSize
from app.checks.rules.connector_class import ConnectorClass
from app.checks.rules.container_sharing import ContainerSharing
from app.checks.rules.disk_limit import DiskLimit
from app.checks.rules.eviction_ratio import EvictionRatio
from app.checks.rules.eviction_watermark import EvictionWatermark
from app.checks.rules.hash_seed import HashSeed
from app.checks.rules.heartbeat import Heartbeat
from app.checks.rules.host_memory import HostMemory
from app.checks.rules.hybrid_serde import HybridSerde
from app.checks.rules.image_tag import ImageTag
from app.checks.rules.in_process_transfers import InProcessTransfers
from app.checks.rules.isolated_ipc import IsolatedIpc
from app.checks.rules.kv_role import KvRole
from app.checks.rules.l1_size import L1Size
from app.checks.rules.leftover_variables import LeftoverVariables
from app.checks.rules.log_level import LogLevel
from app.checks.rules.mamba_blocks import MambaBlocks
from app.checks.rules.mamba_mode import MambaMode
from app.checks.rules.metrics_reachable import MetricsReachable
from app.checks.rules.mq_timeout import MqTimeout
from app.checks.rules.never_evicts import NeverEvicts
from app.checks.rules.object_groups import ObjectGroups
from app.checks.rules.odirect_size import ODirectSize
from app.checks.rules.open_port import OpenPort
from app.checks.rules.prefix_caching import PrefixCaching
from app.checks.rules.prometheus_port import PrometheusPort
from app.checks.rules.prompt_tokens_details import PromptTokensDetails
from app.checks.rules.reachable import Reachable
from app.checks.rules.readable_settings import ReadableSettings
from app.checks.rules.record_names import RecordNames
from app.checks.rules.registered import Registered
from app.checks.rules.shared_directory import SharedDirectory
from app.checks.rules.start_order import StartOrder
from app.checks.rules.store_device import StoreDevice
from app.checks.rules.temp_dir import TempDir
from app.checks.rules.territory import Territory
from app.checks.rules.transfer_mode import TransferMode
from app.checks.rules.unified_memory import UnifiedMemory
from app.checks.rules.version_pair import VersionPair
from app.checks.rules.workers import Workers
from app.checks.rules.write_probe import WriteProbe

#: In the order in which an operator would go through them.
ALL: tuple[Check, ...] = (
    Reachable(),
    Registered(),
    VersionPair(),
    ConnectorClass(),
    KvRole(),
    TransferMode(),
    IsolatedIpc(),
    ContainerSharing(),
    StartOrder(),
    MqTimeout(),
    Heartbeat(),
    ChunkSize(),
    PrefixCaching(),
    BatchedTokens(),
    MambaMode(),
    MambaBlocks(),
    ObjectGroups(),
    HybridSerde(),
    L1Size(),
    HostMemory(),
    UnifiedMemory(),
    EvictionRatio(),
    EvictionWatermark(),
    Workers(),
    StoreDevice(),
    WriteProbe(),
    ODirectSize(),
    TempDir(),
    CapacityWithoutEviction(),
    NeverEvicts(),
    SharedDirectory(),
    HashSeed(),
    RecordNames(),
    MetricsReachable(),
    InProcessTransfers(),
    PrometheusPort(),
    PromptTokensDetails(),
    LogLevel(),
    OpenPort(),
    ImageTag(),
    LeftoverVariables(),
    ReadableSettings(),
    DiskLimit(),
    Territory(),
)
