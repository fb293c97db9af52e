"""Metadata domains of the user: named texts that travel with the table (PROTOCOL, "Domain Metadata")."""

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
    """Set the configuration of a domain and replace the one before. It conflicts with a commit that sets or removes
    the same domain.

    Raises:
        InvalidRequestError: The domain is the protocol's own (`delta.…`) or has no name, the configuration is not a
            string, or the table has no metadata domains. Nothing was committed.
        InvalidPropertyError: The configuration holds a credential. Nothing was committed.
        ConcurrentDomainMetadataError: Another commit changed the domain. The table holds that one.
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
    """Remove a domain; the commit keeps an image of what it held.

    Returns: `skipped` where the table has no such domain.

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
            f"A metadata domain has a name, not {domain!r}", remedy="Pass a string such as 'com.example.lineage'"
        )
    if domain.lower().startswith(SYSTEM_PREFIX):
        raise InvalidRequestError(
            f"The metadata domain {domain!r} is not yours to change",
            cause="Domains whose names begin with 'delta.' belong to table features",
            remedy="Choose a name that tells whose it is, for example 'com.example.lineage'",
            domain=domain,
        )


def _ensure_domains(snapshot: Snapshot) -> None:
    if not snapshot.configuration.supports("domainMetadata"):
        raise InvalidRequestError(
            "The table has no metadata domains",
            cause="Its protocol does not list the table feature domainMetadata",
            remedy='Add it: table.alter().add_feature("domainMetadata").commit()',
        )
