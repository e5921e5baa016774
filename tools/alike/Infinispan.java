// Infinispan serves the protocol of Redis, as Infinispan speaks it, at the host and port of its arguments: one member, in memory.

import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.global.GlobalConfigurationBuilder;
import org.infinispan.manager.DefaultCacheManager;
import org.infinispan.server.resp.RespServer;
import org.infinispan.server.resp.configuration.RespServerConfigurationBuilder;

class Infinispan {
  public static void main(String[] args) throws Exception {
    var global = new GlobalConfigurationBuilder().nonClusteredDefault();
    var cache = new ConfigurationBuilder();
    cache.encoding().key().mediaType(MediaType.APPLICATION_OCTET_STREAM);
    cache.encoding().value().mediaType(MediaType.APPLICATION_OCTET_STREAM);
    var manager = new DefaultCacheManager(global.build());
    manager.defineConfiguration("respCache", cache.build());
    var server = new RespServerConfigurationBuilder().host(args[0]).port(Integer.parseInt(args[1])).defaultCacheName("respCache");
    new RespServer().start(server.build(), manager);
    Thread.currentThread().join();
  }
}
