"""Who may come in: limits on everything that has been accepted and is not yet forgotten.

A request counts from the moment it is admitted until its end has been acknowledged, wherever it
is in between; so nothing waits uncounted.
"""

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class Amount:
    """Requests, tokens (prompt and largest answer) and bytes."""

    requests: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The most that all tenants together, and one tenant, may have in the broker at once."""

    total: Amount = Amount(requests=4096, tokens=16_000_000, bytes=512 << 20)
    tenant: Amount = Amount(requests=4096, tokens=16_000_000, bytes=512 << 20)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not come in."""

    message: str
    retry_after: float | None  # seconds; None: it can never come in


@dataclass(slots=True)
class Admission:
    """The account of what is inside."""

    limits: AdmissionLimits
    used: Counter[str] = field(default_factory=Counter)
    used_by: dict[str, Counter[str]] = field(default_factory=dict)
    _last_release: float | None = None
    _interval: float = 0.25  # seconds between two releases, smoothed

    def admit(self, tenant: str, amount: Amount) -> Refusal | None:
        """Count ``amount`` in, or say why not and change nothing."""
        mine = self.used_by.get(tenant, Counter[str]())
        for scope, limit, used in (
            ("this broker", self.limits.total, self.used),
            ("one tenant", self.limits.tenant, mine),
        ):
            for resource in _RESOURCES:
                most, wanted = getattr(limit, resource), getattr(amount, resource)
                if wanted > most:
                    message = f"it needs {wanted} {resource}; {scope} may hold {most}"
                    return Refusal(message, None)
                if used[resource] + wanted > most:
                    inside = used[resource]
                    message = f"{inside} {resource} of {most} that {scope} may hold are taken"
                    return Refusal(message, min(max(4 * self._interval, 0.05), 5.0))
        self._count(tenant, amount, 1)
        return None

    def release(self, tenant: str, amount: Amount, now: float) -> None:
        """Count ``amount`` out again."""
        self._count(tenant, amount, -1)
        if self._last_release is not None:
            self._interval += 0.1 * (now - self._last_release - self._interval)
        self._last_release = now

    def _count(self, tenant: str, amount: Amount, sign: int) -> None:
        mine = self.used_by.setdefault(tenant, Counter())
        for resource in _RESOURCES:
            change = sign * getattr(amount, resource)
            self.used[resource] += change
            mine[resource] += change
        if not mine["requests"]:
            del self.used_by[tenant]


_RESOURCES = tuple(resource.name for resource in fields(Amount))
