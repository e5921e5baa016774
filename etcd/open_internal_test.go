package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/keepalive"
)

func TestConfigurationKeepsKeepalive(t *testing.T) {
	t.Parallel()
	_, o, err := parseConfig(clientv3.Config{
		Endpoints: []string{"h1:2379"}, DialKeepAliveTime: 20 * time.Second, DialKeepAliveTimeout: 5 * time.Second, PermitWithoutStream: true,
	}, nil)
	want := keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}
	if err != nil || o.keepAlive != want {
		t.Errorf("keepalive %+v, %v, want %+v", o.keepAlive, err, want)
	}
}
