package io.unitycatalog.spark;

import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.DelegatingCatalogExtension;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Stands where Unity Catalog's connector for Spark would: Delta looks for a catalog of this name, and for a delegate of
 * this package. What talks to the server is Delta's own client and the SDK of Unity Catalog.
 */
public class UCSingleCatalog extends DeltaCatalog {
  private String name;

  /** Everything but tables: namespaces and functions are those of the session. */
  public static class Rest extends DelegatingCatalogExtension {}

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    super.initialize(name, options);
    SparkSession session = (SparkSession) org.apache.spark.sql.SparkSession.active();
    Rest rest = new Rest();
    rest.setDelegateCatalog(session.sessionState().catalogManager().v2SessionCatalog());
    setDelegateCatalog(rest);
  }

  @Override
  public String name() {
    return name;
  }
}
