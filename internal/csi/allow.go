package csi

import (
	"errors"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/csi/volumes"
	"github.com/kv3fs/kv3fs/internal/host"
)

// Grant lets the pods of a namespace have something: a directory and all below it, a page namespace, or the most that a quota may be.
type Grant struct {
	Namespace string // "*": any
	What      string // "{namespace}" in it stands for the pod's
}

// namespaceMark stands in a Grant for the namespace of the pod.
const namespaceMark = "{namespace}"

// UnmarshalText parses NAMESPACE=WHAT.
func (g *Grant) UnmarshalText(text []byte) error {
	namespace, what, ok := strings.Cut(string(text), "=")
	if !ok || namespace == "" || what == "" {
		return errors.New("want NAMESPACE=WHAT; * is any namespace")
	}
	*g = Grant{namespace, what}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (g Grant) MarshalText() ([]byte, error) { return []byte(g.Namespace + "=" + g.What), nil }

// Directory reports a grant whose directory cannot be one.
func (g Grant) Directory() error {
	_, err := volumes.SubDirectory(g.What)
	return err
}

// Quota reports a grant whose size cannot be one.
func (g Grant) Quota() error {
	if _, err := parseQuota(g.What); err != nil {
		return errors.New(status.Convert(err).Message())
	}
	return nil
}

// of returns what the grant gives a namespace.
func (g Grant) of(namespace string) (what string, ok bool) {
	if g.Namespace != "*" && g.Namespace != namespace {
		return "", false
	}
	return strings.ReplaceAll(g.What, namespaceMark, namespace), true
}

// sharedBeyond reports whether the grant, of a directory, gives others than a namespace what a quota of a directory would limit. One namespace may
// have all of what is above: its quota is another one.
func (g Grant) sharedBeyond(namespace, dir string) bool {
	if g.Namespace == namespace {
		return false
	}
	given, asked := components(g.What), components(dir)
	for i := range min(len(given), len(asked)) {
		switch name := given[i]; {
		case g.Namespace == "*" && strings.Contains(name, namespaceMark):
			if asked[i] == strings.ReplaceAll(name, namespaceMark, namespace) {
				return false // others have other names
			}
		case strings.ReplaceAll(name, namespaceMark, g.Namespace) != asked[i]:
			return false
		}
	}
	return g.Namespace == "*" || len(given) >= len(asked)
}

func components(dir string) []string {
	clean, err := volumes.SubDirectory(dir)
	if err != nil || clean == "." {
		return nil
	}
	return strings.Split(clean, "/")
}

// identified refuses a volume of a pod that kubelet did not name. Without podInfoOnMount a pod may write here what it likes, but cannot know its
// uid, by which kubelet names the target.
func (s *service) identified(r volumes.Record, uid string) error {
	if r.Namespace == "" || uid == "" {
		return status.Errorf(codes.PermissionDenied, "kubelet did not say whose pod this is: set podInfoOnMount in the CSIDriver object %s", s.c.Name)
	}
	at := strings.Split(filepath.Clean(r.Target), "/") // .../pods/UID/volumes/kubernetes.io~csi/NAME/mount
	if n := len(at); n < 6 || at[n-6] != "pods" || at[n-5] != uid {
		return status.Errorf(codes.PermissionDenied, "target %s is not of the pod with uid %q, so kubelet did not say whose pod this is: set podInfoOnMount in the CSIDriver object %s", r.Target, uid, s.c.Name)
	}
	return nil
}

// mayLimit refuses a quota that the pod may not set. Where directories are granted, so are quotas, and only of what no other namespace has.
func (s *service) mayLimit(r volumes.Record, uid string) error {
	if r.QuotaBytes == 0 || r.ReadOnly || len(s.c.Allow)+len(s.c.AllowQuota) == 0 {
		return nil
	}
	if err := s.identified(r, uid); err != nil {
		return err
	}
	most, may := int64(0), "none"
	for _, g := range s.c.AllowQuota {
		text, ok := g.of(r.Namespace)
		if !ok {
			continue
		}
		bytes, err := parseQuota(text)
		if err != nil {
			return err
		}
		if bytes > most {
			most, may = bytes, "at most "+text
		}
	}
	if r.QuotaBytes > most {
		return status.Errorf(codes.PermissionDenied, "pods of namespace %s may not set a %s of %d bytes, but %s: leave it out, or have an administrator give kv3fs csi --allow-quota %s=SIZE", r.Namespace, attrQuota, r.QuotaBytes, may, r.Namespace)
	}
	for _, g := range s.c.Allow {
		if g.sharedBeyond(r.Namespace, r.SubDirectory) {
			return status.Errorf(codes.PermissionDenied, "pods of namespace %s may not set a %s of %s, which others have by --allow %s=%s: leave it out; an administrator can set it by kv3fs quota", r.Namespace, attrQuota, r.SubDirectory, g.Namespace, g.What)
		}
	}
	return nil
}

// allowed refuses a volume that its pod, which has that uid, may not have. Without grants of a kind, everybody may have all.
func (s *service) allowed(r volumes.Record, uid string) error {
	check := func(flag string, grants []Grant, what, named string, covers func(given string) bool) error {
		if len(grants) == 0 {
			return nil
		}
		if err := s.identified(r, uid); err != nil {
			return err
		}
		var has []string
		for _, g := range grants {
			given, ok := g.of(r.Namespace)
			if ok && covers(given) {
				return nil
			}
			if ok {
				has = append(has, given)
			}
		}
		may := "none"
		if len(has) > 0 {
			may = strings.Join(has, ", ")
		}
		return status.Errorf(codes.PermissionDenied, "pods of namespace %s may not use %s %s, but %s: use that, or have an administrator give kv3fs csi %s %s=%s", r.Namespace, what, named, may, flag, r.Namespace, named)
	}
	err := check("--allow", s.c.Allow, attrSubDirectory, r.SubDirectory, func(given string) bool {
		dir, err := volumes.SubDirectory(given)
		return err == nil && (dir == "." || host.Within(r.SubDirectory, dir))
	})
	if err == nil {
		err = s.mayLimit(r, uid)
	}
	if err != nil || r.Pages == "" {
		return err
	}
	grants := s.c.AllowPages
	if len(grants) == 0 && len(s.c.Allow) > 0 { // who may not use every directory may not use every key
		return status.Errorf(codes.PermissionDenied, "pods of namespace %s may not use %s %s: have an administrator give kv3fs csi --allow-pages %s=%s", r.Namespace, attrPages, r.Pages, r.Namespace, r.Pages)
	}
	return check("--allow-pages", grants, attrPages, r.Pages, func(given string) bool { return given == r.Pages })
}
