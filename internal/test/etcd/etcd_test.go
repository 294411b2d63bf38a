package etcd

import (
	"context"
	"errors"
	"os"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestMain(m *testing.M) { os.Exit(Main(m, 3)) }

// put writes a key with some patience.
func put(m *Members, c *clientv3.Client, key, value string) {
	m.t.Helper()
	m.Await("a put", func(ctx context.Context) error {
		_, err := c.Put(ctx, key, value)
		return err
	})
}

func get(m *Members, c *clientv3.Client, key string) (value string) {
	m.t.Helper()
	m.Await("a get", func(ctx context.Context) error {
		answer, err := c.Get(ctx, key)
		if err != nil {
			return err
		}
		if value = ""; len(answer.Kvs) > 0 {
			value = string(answer.Kvs[0].Value)
		}
		return nil
	})
	return value
}

func TestMembers(t *testing.T) {
	t.Parallel()
	m := Start(t, Options{})
	c := m.Client()
	put(m, c, "a", "1")
	leader := m.Leader()
	m.Stop(leader)
	put(m, c, "a", "2")
	m.Continue(leader)
	m.Kill(leader)
	put(m, c, "a", "3")
	m.Restart(leader)
	m.Await("the member is back", func(ctx context.Context) error {
		answer, err := m.Client(leader).Get(ctx, "a")
		if err == nil && string(answer.Kvs[0].Value) != "3" {
			t.Errorf("%s", answer.Kvs[0].Value)
		}
		return err
	})
	backup := m.Backup()
	put(m, c, "a", "4")
	m.Restore(backup)
	if v := get(m, c, "a"); v != "3" {
		t.Errorf("restored: %q", v)
	}
	m.Wipe()
	if v := get(m, c, "a"); v != "" {
		t.Errorf("wiped: %q", v)
	}
}

func TestFull(t *testing.T) {
	t.Parallel()
	m := Start(t, Options{QuotaBytes: 16 << 20})
	c := m.Client()
	m.Fill()
	m.Await("a refusal", func(ctx context.Context) error {
		_, err := c.Grant(ctx, 10)
		if err == nil {
			t.Fatal("a full etcd has granted a lease")
		}
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			return err
		}
		return nil
	})
	m.Drain()
	put(m, c, "a", "1")
}

func TestUsersAndTLS(t *testing.T) {
	t.Parallel()
	m := Start(t, Options{Members: 1, TLS: true, Password: "secret"})
	m.AddUser("kv3fs", "other", "/kv3fs")
	put(m, m.Client(), "/elsewhere", "1")
	own, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + m.Endpoints()[0]}, TLS: m.TLS(), Username: "kv3fs", Password: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	put(m, own, "/kv3fs/a", "1")
	if _, err := own.Get(context.Background(), "/elsewhere"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("another's key: %v", err)
	}
}
