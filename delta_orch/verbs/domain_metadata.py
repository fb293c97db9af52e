"""Metadata domains of the user: named texts that are part of the table (PROTOCOL, "Domain Metadata")."""

from __future__ import annotations

from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.log.write.transaction import Transaction

SYSTEM_PREFIX = "delta."


def set_domain_metadata(
    log: TableLog, snapshot: Snapshot, domain: str, configuration: str, options: CommitOptions
) -> CommitResult:
    """Set the configuration of a domain, and replace an older one. The commit conflicts with another commit that sets
    or removes the same domain.

    Raises:
        InvalidRequestError: The domain belongs to the protocol (`delta.…`), its name is empty, the configuration is not
            a string, or the table does not support metadata domains. Nothing was committed.
        InvalidPropertyError: The configuration holds a credential. Nothing was committed.
        ConcurrentDomainMetadataError: Another commit changed the domain. The table has the configuration of that
            commit.
    """
    _ensure_users_own(domain)
    if not isinstance(configuration, str):
        raise InvalidRequestError(
            f"The configuration of a metadata domain is a string, not {type(configuration).__name__}",
            remedy="Serialize it, for example as JSON",
        )
    transaction = _transaction(log, snapshot, "SET DOMAIN METADATA", domain, options)
    _ensure_domains(snapshot)
    transaction.set_domain_metadata(domain, configuration)
    return transaction.commit()


def remove_domain_metadata(log: TableLog, snapshot: Snapshot, domain: str, options: CommitOptions) -> CommitResult:
    """Remove a domain. The commit records the removed configuration.

    Returns: `skipped` if the table has no such domain.

    Raises as `set_domain_metadata`.
    """
    _ensure_users_own(domain)
    transaction = _transaction(log, snapshot, "REMOVE DOMAIN METADATA", domain, options)
    if domain not in snapshot.domain_metadata:
        return transaction.skip()
    _ensure_domains(snapshot)
    transaction.set_domain_metadata(domain, snapshot.domain_metadata[domain], removed=True)
    return transaction.commit()


def _transaction(log: TableLog, snapshot: Snapshot, operation: str, domain: str, options: CommitOptions) -> Transaction:
    return Transaction(log, snapshot, operation=operation, operation_parameters={"domain": domain}, **options)


def _ensure_users_own(domain: str) -> None:
    if not isinstance(domain, str) or not domain:
        raise InvalidRequestError(
            f"The name of a metadata domain must be a string that is not empty, not {domain!r}",
            remedy="Pass a string such as 'com.example.lineage'",
        )
    if domain.lower().startswith(SYSTEM_PREFIX):
        raise InvalidRequestError(
            f"The metadata domain {domain!r} cannot be changed by users",
            cause="Names that begin with 'delta.' belong to table features",
            remedy="Choose a name of your own, for example 'com.example.lineage'",
            domain=domain,
        )


def _ensure_domains(snapshot: Snapshot) -> None:
    if not snapshot.configuration.supports("domainMetadata"):
        raise InvalidRequestError(
            "The table has no metadata domains",
            cause="Its protocol does not list the table feature domainMetadata",
            remedy='Add it: table.alter().add_feature("domainMetadata").commit()',
        )
