package controller

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
)

// problem is what somebody must do something about.
type problem struct {
	reason  string
	message string // names the thing and the cure
	blocks  bool   // nothing is made or changed until it is cured
}

// findings are what was found out about a cache before anything is made for it.
type findings struct {
	problems []problem
	etcd     build.EtcdSecret
}

func (f *findings) add(blocks bool, reason, format string, args ...any) {
	f.problems = append(f.problems, problem{reason, fmt.Sprintf(format, args...), blocks})
}

func (f *findings) blocked() bool {
	return slices.ContainsFunc(f.problems, func(p problem) bool { return p.blocks })
}

// check looks for what no schema can see: other caches, claims, Secrets and nodes.
func (r *Reconciler) check(ctx context.Context, cache *v1alpha1.KVCache) (findings, error) {
	var f findings
	nodes, err := r.nodes(ctx, r.Client, cache)
	if err != nil {
		return f, err
	}
	if len(nodes) == 0 {
		f.add(false, "NoNodes", "no node has the labels %s: label nodes, or change placement.nodeSelector", selectorText(build.NodeSelector(cache)))
	}
	if err := r.checkOthers(ctx, cache, nodes, &f); err != nil {
		return f, err
	}
	if cache.Spec.Data.Claim != nil {
		if err := r.checkClaim(ctx, cache, len(nodes), &f); err != nil {
			return f, err
		}
	}
	return f, r.checkSecrets(ctx, cache, &f)
}

// nodes returns the names of the nodes that a cache is placed on.
func (r *Reconciler) nodes(ctx context.Context, from client.Reader, cache *v1alpha1.KVCache) ([]string, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := from.List(ctx, &list, client.MatchingLabels(build.NodeSelector(cache))); err != nil {
		return nil, fmt.Errorf("list the nodes of %s: %w", cache.Name, err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names, nil
}

// checkOthers looks for an older cache with the same files: two daemons would each remove what the other counts on.
func (r *Reconciler) checkOthers(ctx context.Context, cache *v1alpha1.KVCache, nodes []string, f *findings) error {
	var all v1alpha1.KVCacheList
	if err := r.Client.List(ctx, &all); err != nil {
		return fmt.Errorf("list caches: %w", err)
	}
	for i := range all.Items {
		other := &all.Items[i]
		if other.UID == cache.UID || !older(other, cache) {
			continue
		}
		what := sameFiles(cache.Spec.Data, other.Spec.Data)
		if what == "" {
			continue
		}
		if cache.Spec.Data.Claim != nil {
			f.add(true, "DataInUse", "%s is that of KVCache %s: give another claim, or delete one of the caches", what, other.Name)
			continue
		}
		theirs, err := r.nodes(ctx, r.Client, other)
		if err != nil {
			return err
		}
		if common := common(nodes, theirs); len(common) > 0 {
			f.add(true, "DataInUse", "%s is that of KVCache %s on %s: give another directory, place them on different nodes, or delete one of the caches", what, other.Name, few(common))
		}
	}
	return nil
}

// common returns what is in both of two lists.
func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(n string) bool { return !slices.Contains(b, n) })
}

// older says whether a cache was there first.
func older(a, b *v1alpha1.KVCache) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// sameFiles says what two caches would both use, or "".
func sameFiles(a, b v1alpha1.Data) string {
	if a.Claim != nil {
		if b.Claim != nil && a.Claim.Name == b.Claim.Name {
			return "claim " + a.Claim.Name
		}
		return ""
	}
	mine, theirs := directory(a), directory(b)
	switch {
	case theirs == "":
		return ""
	case mine == theirs:
		return "directory " + mine
	case strings.HasPrefix(mine, theirs+"/"):
		return fmt.Sprintf("directory %s is below %s, which", mine, theirs)
	case strings.HasPrefix(theirs, mine+"/"):
		return fmt.Sprintf("directory %s contains %s, which", mine, theirs)
	}
	return ""
}

func directory(d v1alpha1.Data) string {
	switch {
	case d.HostPath != nil:
		return path.Clean(d.HostPath.Path)
	case d.LocalDisk != nil:
		return path.Clean(d.LocalDisk.MountPoint)
	}
	return ""
}

// checkClaim looks whether a claim can be what the cache wants.
func (r *Reconciler) checkClaim(ctx context.Context, cache *v1alpha1.KVCache, nodes int, f *findings) error {
	name := cache.Spec.Data.Claim.Name
	var claim corev1.PersistentVolumeClaim
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: name}, &claim)
	switch {
	case gone(err):
		f.add(true, "ClaimMissing", "there is no PersistentVolumeClaim %s in namespace %s: make it there, or make a KVCache with another data.claim.name", name, r.Namespace)
		return nil
	case err != nil:
		return fmt.Errorf("get claim %s: %w", name, err)
	}
	if nodes > 1 && !slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) {
		f.add(true, "ClaimNotShared", "claim %s is %s, and %d nodes are to use it: take one that is ReadWriteMany, or a placement.nodeSelector with one node", name, modes(claim.Spec.AccessModes), nodes)
	}
	if claim.Status.Phase == corev1.ClaimLost {
		f.add(true, "ClaimLost", "claim %s has lost its volume: make a new claim, and a KVCache with it", name)
	}
	has, known := claim.Status.Capacity[corev1.ResourceStorage]
	if wants, err := resource.ParseQuantity(cache.Spec.Capacity); known && err == nil && wants.Cmp(has) > 0 {
		f.add(false, "CapacityAboveClaim", "capacity is %s, and claim %s has %s: give a smaller capacity, such as 80%%, or a larger claim", cache.Spec.Capacity, name, has.String())
	}
	return nil
}

func modes(all []corev1.PersistentVolumeAccessMode) string {
	var names []string
	for _, m := range all {
		names = append(names, string(m))
	}
	return strings.Join(names, " and ")
}

// checkSecrets looks for the Secrets that a cache names.
func (r *Reconciler) checkSecrets(ctx context.Context, cache *v1alpha1.KVCache, f *findings) error {
	pages := cache.Spec.PageService
	if pages.TokenSecret != "" {
		has, err := r.secret(ctx, pages.TokenSecret, "pageService.tokenSecret", f)
		if err != nil {
			return err
		}
		if has != nil && len(has["token"]) == 0 {
			f.add(true, "SecretIncomplete", "Secret %s in namespace %s lacks the key token: add it, or leave out pageService.tokenSecret", pages.TokenSecret, r.Namespace)
		}
	}
	if pages.Etcd == nil || pages.Etcd.Secret == "" {
		return nil
	}
	name := pages.Etcd.Secret
	has, err := r.secret(ctx, name, "pageService.etcd.secret", f)
	if err != nil || has == nil {
		return err
	}
	both := func(a, b string) bool {
		one, two := len(has[a]) > 0, len(has[b]) > 0
		if one != two {
			f.add(true, "SecretIncomplete", "Secret %s in namespace %s has only one of %s and %s: add the other, or remove it", name, r.Namespace, a, b)
		}
		return one && two
	}
	f.etcd = build.EtcdSecret{CA: len(has["ca.crt"]) > 0, Certificate: both("tls.crt", "tls.key"), Password: both("username", "password")}
	return nil
}

// secret returns what is in a Secret, or nil if there is none.
func (r *Reconciler) secret(ctx context.Context, name, field string, f *findings) (map[string][]byte, error) {
	var s corev1.Secret
	err := r.Direct.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: name}, &s)
	if gone(err) {
		f.add(true, "SecretMissing", "there is no Secret %s in namespace %s: make it there, or change %s", name, r.Namespace, field)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get Secret %s: %w", name, err)
	}
	if s.Data == nil {
		return map[string][]byte{}, nil
	}
	return s.Data, nil
}

func selectorText(selector map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		pairs = append(pairs, key+"="+selector[key])
	}
	return strings.Join(pairs, ", ")
}

// few names the first of many.
func few(names []string) string {
	const shown = 3
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}
