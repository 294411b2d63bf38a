package csi

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/csi/volumes"
	"github.com/kv3fs/kv3fs/internal/host"
)

// Grant lets the pods of a namespace have something: a directory and all below it, or a page namespace.
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

// of returns what the grant gives a namespace.
func (g Grant) of(namespace string) (what string, ok bool) {
	if g.Namespace != "*" && g.Namespace != namespace {
		return "", false
	}
	return strings.ReplaceAll(g.What, namespaceMark, namespace), true
}

// allowed refuses a volume that its pod may not have. Without grants of a kind, everybody may have all.
func (s *service) allowed(r volumes.Record) error {
	check := func(flag string, grants []Grant, what, named string, covers func(given string) bool) error {
		if len(grants) == 0 {
			return nil
		}
		if r.Namespace == "" {
			return status.Errorf(codes.PermissionDenied, "kubelet did not say whose pod this is: set podInfoOnMount in the CSIDriver object %s", s.c.Name)
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
	if err != nil || r.Pages == "" {
		return err
	}
	grants := s.c.AllowPages
	if len(grants) == 0 && len(s.c.Allow) > 0 { // who may not use every directory may not use every key
		return status.Errorf(codes.PermissionDenied, "pods of namespace %s may not use %s %s: have an administrator give kv3fs csi --allow-pages %s=%s", r.Namespace, attrPages, r.Pages, r.Namespace, r.Pages)
	}
	return check("--allow-pages", grants, attrPages, r.Pages, func(given string) bool { return given == r.Pages })
}
