"""What a process is told by its environment (variables EFFECTS_…). Temporal's own connection comes from its envconfig.

A setting may also be a file of its name, in small letters, in the secrets folder: a DSN holds a password, which an environment
shows to everybody who can inspect the process or its container. A variable that is set goes before its file.
"""

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from activities.messages import TASK_QUEUE
from ledger.contract import Timing
from ledger.errors import Refused


class Settings(BaseSettings):
    """Settings of worker and command line. Providers' secrets are files or variables of their own, never fields of this."""

    model_config = SettingsConfigDict(env_prefix="EFFECTS_", extra="ignore")

    ledger_dsn: str = Field(default="", description="the worker's DSN of the ledger's Postgres")
    owner_dsn: str = Field(
        default="", description="the owner's DSN: migrate and apply configuration; a worker migrates with it"
    )
    secrets_dir: Path | None = Field(
        default=None,
        description="folder with one file per secret; DSNs may be files in it too, like `effects_ledger_dsn`",
    )
    task_queue: str = Field(default=TASK_QUEUE, description="Temporal task queue of workers and command line")
    payload_keys: str = Field(
        default="",
        description="names of the secrets that encrypt what Temporal keeps, `new,old`: the first encrypts, all decrypt; "
        "`plain` as the first encrypts nothing",
    )
    stripe_base_url: str | None = Field(
        default=None, description="replaces Stripe's address: a stand-in or an egress gateway"
    )
    dev: bool = Field(default=False, description="a dev stack: a movable clock and crash points are allowed")
    pool_size: int = Field(default=10, description="most connections of one worker to the ledger")
    activities_at_once: int = Field(default=20, description="most activities that one worker runs at a time")
    inbox_port: int = Field(
        default=0, ge=0, le=65535, description="port for webhooks; a worker that is told one receives them as well"
    )
    inbox_host: str = Field(default="127.0.0.1", description="address that the inbox listens on")
    inbox_dsn: str = Field(default="", description="the inbox's own DSN: its role can add events and read nothing")
    inbox_account: str = Field(default="", description="whose endpoint it is at Stripe, as in tenants.toml: acct_…")
    inbox_secret: str = Field(default="stripe_webhook", description="name of the endpoint's signing secret")
    inbox_secret_previous: str = Field(
        default="stripe_webhook_previous", description="name of the secret that it replaced, honoured while it is there"
    )
    inbox_rate: float = Field(default=50.0, gt=0, description="deliveries a second that the inbox accepts")
    codec_port: int = Field(
        default=0, ge=0, le=65535, description="port on which `effects codec` decrypts for the Web UI"
    )
    codec_host: str = Field(default="127.0.0.1", description="address that it listens on")
    codec_origin: str = Field(default="", description="the Web UI's origin, exactly: https://temporal.example.com")
    codec_token: str = Field(default="codec_token", description="name of the secret that its callers must know")
    take_events_every: float = Field(
        default=60.0, ge=0, description="seconds between two looks into the inbox without a hint; 0: none"
    )
    audit_every: float = Field(
        default=3600.0, ge=0, description="seconds between two audits, which also start what nobody works on; 0: none"
    )
    notices_url: str = Field(default="", description="where people's notices are posted; empty: nowhere, they wait")
    notices_secret: str = Field(default="notices", description="name of the secret that signs them: whsec_BASE64")
    notices_link: str = Field(
        default="", description="where people look, {workflow_id} replaced: the run's page in Temporal's Web UI"
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="port of the worker's Prometheus endpoint, /metrics; 0: none"
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="address that the metrics are told on, to anybody who asks"
    )
    metrics_every: float = Field(
        default=15.0, gt=0, description="seconds between two readings of the whole ledger for its gauges"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="of the JSON lines on stderr"
    )
    send_within: float | None = Field(default=None, description="S of the send guard, seconds; dev only")
    call_deadline: float | None = Field(default=None, description="D of the send guard, seconds; dev only")
    backoff: float | None = Field(default=None, description="first pause before a repeat or look, seconds; dev only")
    seam: str = Field(default="", description="NAME:kill|stop:FLAG-FILE, a crash point that fires once; dev only")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then variables, then files in EFFECTS_SECRETS_DIR."""
        folder = os.environ.get("EFFECTS_SECRETS_DIR", "")
        if not (folder and Path(folder).is_dir()):
            return init_settings, env_settings
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, secrets_dir=folder)

    @classmethod
    def load(cls) -> Self:
        """The settings of this process. Refused: `setting_malformed` names the variable, `setting_unreadable` the file."""
        try:
            return cls()
        except SettingsError as error:
            told = f"{error.__cause__}: whoever runs this must be able to read it"
            raise Refused("setting_unreadable", told) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = "EFFECTS_" + "_".join(map(str, first["loc"])).upper()
            raise Refused("setting_malformed", f"{name}: {first['msg'].lower()}", field=name) from None

    def timing(self) -> Timing | None:
        """Bounds that replace those of the contracts; None outside of a dev stack."""
        given = {
            name: value
            for name, value in (
                ("send_within", self.send_within),
                ("call_deadline", self.call_deadline),
                ("backoff", self.backoff),
            )
            if value is not None
        }
        return Timing(**given) if given and self.dev else None
