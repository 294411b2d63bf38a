package csi

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/csi/volumes"
)

// A pod sets the quota of what its namespace has alone, up to what it was granted. It cannot evict what others have, nor say that it is of another
// namespace.
func TestWhoMaySetAQuota(t *testing.T) {
	allow := []Grant{{"a", "teams/a"}, {"admin", "."}, {"*", "shared"}, {"*", "of/{namespace}"}, {"b", "both"}, {"c", "both/c"}, {"*", "x/{namespace}/all"}}
	quota := []Grant{{"a", "1GiB"}, {"*", "4MiB"}}
	for _, c := range []struct {
		namespace, dir string
		bytes          int64
		readOnly       bool
		code           codes.Code
	}{
		{"a", "teams/a", 1 << 30, false, codes.OK},
		{"a", "teams/a/b", 1 << 20, false, codes.OK},
		{"a", "teams/a", 1<<30 + 1, false, codes.PermissionDenied},
		{"a", "shared", 1 << 20, false, codes.PermissionDenied},
		{"a", "shared/a", 1 << 20, false, codes.PermissionDenied},
		{"a", "shared", 1 << 20, true, codes.OK}, // it sets none
		{"a", "shared", 0, false, codes.OK},
		{"d", "of/d", 4 << 20, false, codes.OK},
		{"d", "of/d", 8 << 20, false, codes.PermissionDenied},
		{"b", "both", 1 << 20, false, codes.PermissionDenied},
		{"c", "both/c", 1 << 20, false, codes.OK},
		{"d", "x/d/all", 1 << 20, false, codes.OK},
		{"admin", "of", 1 << 20, false, codes.PermissionDenied},
		{"admin", "other", 1 << 20, false, codes.OK},
	} {
		s := service{c: Config{Allow: allow, AllowQuota: quota}}
		r := volumes.Record{Namespace: c.namespace, SubDirectory: c.dir, QuotaBytes: c.bytes, ReadOnly: c.readOnly, Target: "/k/pods/u/volumes/kubernetes.io~csi/v/mount"}
		if err := s.allowed(r, "u"); status.Code(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
		if err := s.allowed(r, "other"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%+v of another pod: %v", c, err)
		}
		if s.c.AllowQuota = nil; c.bytes > 0 && !c.readOnly {
			if err := s.allowed(r, "u"); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%+v without a grant: %v", c, err)
			}
		}
		if s.c.Allow = nil; s.allowed(r, "") != nil {
			t.Errorf("%+v is refused where all may have all", c)
		}
	}
}
