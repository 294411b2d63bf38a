package controller_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/apiservertest"
	"github.com/kv3fs/kv3fs/operator/internal/build"
	"github.com/kv3fs/kv3fs/operator/internal/controller"
	"github.com/kv3fs/kv3fs/operator/internal/daemontest"
)

const (
	namespace = "kv3fs-system" // as in rbac/role.yaml
	patience  = 2 * time.Minute
)

// cluster is a real API server on which the operator runs with no more rights than rbac/ gives it.
type cluster struct {
	client.Client // an administrator's
	*testing.T
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func administrator(t *testing.T, env *envtest.Environment) cluster {
	t.Helper()
	c, err := client.New(env.Config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	k := cluster{c, t}
	k.must(k.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	for _, node := range []string{"node-a", "node-b"} {
		k.must(k.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"kubernetes.io/os": "linux", "name": node}}}))
	}
	return k
}

// hears waits until the server knows of the rights with which the operator begins: it hears of them by a watch.
func (k cluster) hears(user string) {
	k.Helper()
	for _, may := range []authorizationv1.ResourceAttributes{
		{Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace, Verb: "get"},
		{Group: v1alpha1.GroupName, Resource: "kvcaches", Verb: "list"},
	} {
		k.eventually(func() error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &may}}
			if err := k.Create(k.Context(), review); err != nil {
				return err
			}
			if !review.Status.Allowed {
				return fmt.Errorf("%s may not %s %s yet: %s", user, may.Verb, may.Resource, review.Status.Reason)
			}
			return nil
		})
	}
}

// operate runs the operator until the test ends.
func (k cluster) operate(env *envtest.Environment) {
	k.Helper()
	user := envtest.User{Name: "operator", Groups: []string{"system:authenticated"}}
	k.grant(user.Name)
	k.hears(user.Name)
	account, err := env.AddUser(user, nil)
	k.must(err)
	skip := true
	rights := account.Config()
	rights.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusals{next, k.T} })
	m, err := ctrl.NewManager(rights, ctrl.Options{
		Scheme: scheme(k.T), Cache: cache.Options{ByObject: controller.Cached(namespace)},
		Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &skip},
		LeaderElection: true, LeaderElectionID: "kv3fs-operator", LeaderElectionNamespace: namespace, LeaderElectionReleaseOnCancel: true,
	})
	k.must(err)
	r := &controller.Reconciler{
		Client: m.GetClient(), Direct: m.GetAPIReader(), Events: m.GetEventRecorder("kv3fs-operator"),
		Namespace: namespace, Image: "kv3fs:test", Operator: "kv3fs-operator:test", Every: time.Second,
	}
	k.must(r.SetUp(m))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	k.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			k.Error("the operator:", err)
		}
	})
}

// refusals fails a test in which the operator does what it may not do.
type refusals struct {
	http.RoundTripper
	*testing.T
}

func (r refusals) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusForbidden {
		r.Errorf("the operator may not %s %s", request.Method, request.URL.Path)
	}
	return response, err
}

// grant gives a user the rights of rbac/role.yaml.
func (k cluster) grant(user string) {
	k.Helper()
	text, err := os.ReadFile("../../rbac/role.yaml")
	k.must(err)
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	for part := range strings.SplitSeq(string(text), "---\n") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		u := &unstructured.Unstructured{}
		k.must(yaml.Unmarshal([]byte(part), u))
		k.must(k.Create(k.Context(), u))
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: u.GetKind(), Name: u.GetName()}
		if u.GetKind() == "Role" {
			k.must(k.Create(k.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "operator", Namespace: namespace}, Subjects: subjects, RoleRef: ref}))
		} else {
			k.must(k.Create(k.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "operator"}, Subjects: subjects, RoleRef: ref}))
		}
	}
}

func (k cluster) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// eventually waits until a check has nothing to say.
func (k cluster) eventually(check func() error) {
	k.Helper()
	until := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			k.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// with returns the cluster for a test within a test.
func (k cluster) with(t *testing.T) cluster { return cluster{k.Client, t} }

// kvcache reads one from YAML.
func (k cluster) kvcache(name, spec string) *v1alpha1.KVCache {
	k.Helper()
	c := &v1alpha1.KVCache{}
	k.must(yaml.UnmarshalStrict(fmt.Appendf(nil, "apiVersion: kv3fs.io/v1alpha1\nkind: KVCache\nmetadata: {name: %s}\nspec: %s\n", name, spec), c))
	return c
}

// create makes one, without the fields that were left out, which the server fills in.
func (k cluster) create(name, spec string) error {
	k.Helper()
	u := &unstructured.Unstructured{}
	k.must(yaml.Unmarshal(fmt.Appendf(nil, "apiVersion: kv3fs.io/v1alpha1\nkind: KVCache\nmetadata: {name: %s}\nspec: %s\n", name, spec), u))
	return k.Create(k.Context(), u)
}

// made creates a cache that goes with the test.
func (k cluster) made(name, spec string) *v1alpha1.KVCache {
	k.Helper()
	k.must(k.create(name, spec))
	c := &v1alpha1.KVCache{ObjectMeta: metav1.ObjectMeta{Name: name}}
	k.Cleanup(func() { k.remove(c) })
	return c
}

// remove deletes a cache and does what a garbage collector would.
func (k cluster) remove(c *v1alpha1.KVCache) {
	ctx := context.Background()
	if err := client.IgnoreNotFound(k.Delete(ctx, c)); err != nil {
		k.Error(err)
	}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: build.Name(c.Name), Namespace: namespace}}
	if err := client.IgnoreNotFound(k.Delete(ctx, set)); err != nil {
		k.Error(err)
	}
}

// condition waits until a condition of a cache has a status and reason, and a message in which everything is found.
func (k cluster) condition(name, kind string, status metav1.ConditionStatus, reason string, mentions ...string) {
	k.Helper()
	k.eventually(func() error {
		c := &v1alpha1.KVCache{}
		if err := k.Get(k.Context(), types.NamespacedName{Name: name}, c); err != nil {
			return err
		}
		got := meta.FindStatusCondition(c.Status.Conditions, kind)
		switch {
		case got == nil:
			return fmt.Errorf("%s has no condition %s", name, kind)
		case got.Status != status || got.Reason != reason || got.ObservedGeneration != c.Generation || c.Status.ObservedGeneration != c.Generation:
			return fmt.Errorf("%s, generation %d of %d: %s is %s, %s: %s; want %s, %s", name, got.ObservedGeneration, c.Generation, kind, got.Status, got.Reason, got.Message, status, reason)
		}
		for _, m := range mentions {
			if !strings.Contains(got.Message, m) {
				return fmt.Errorf("%s: the message of %s does not mention %q: %s", name, kind, m, got.Message)
			}
		}
		return nil
	})
}

// event waits for a warning about a cache.
func (k cluster) event(name, reason string) {
	k.Helper()
	k.eventually(func() error {
		var all eventsv1.EventList
		if err := k.List(k.Context(), &all); err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.Regarding.Kind == "KVCache" && e.Regarding.Name == name && e.Reason == reason && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("no event of %s says %s", name, reason)
	})
}

// serves does what a DaemonSet's controller would: all of so many nodes have the current version, and so many are ready.
func (k cluster) serves(name string, nodes, ready int32) {
	k.Helper()
	k.eventually(func() error {
		set := &appsv1.DaemonSet{}
		if err := k.Get(k.Context(), types.NamespacedName{Namespace: namespace, Name: name}, set); err != nil {
			return err
		}
		set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: nodes, CurrentNumberScheduled: nodes, UpdatedNumberScheduled: nodes,
			NumberReady: ready, NumberAvailable: ready, ObservedGeneration: set.Generation}
		return k.Status().Update(k.Context(), set)
	})
}

func TestOperator(t *testing.T) {
	env := apiservertest.Start(t)
	k := administrator(t, env)
	t.Run("the CRD is upgraded", func(t *testing.T) { k.with(t).upgradeCRD(env) })
	k.operate(env)
	t.Run("after an upgrade of the CRD", func(t *testing.T) {
		k := k.with(t)
		k.condition("old", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
		k.remove(k.kvcache("old", "{data: {hostPath: {path: /srv/old}}}"))
	})
	for name, test := range map[string]func(cluster){
		"schema": schema, "objects": objects, "conflicting edits": edits, "status": status, "bad input": badInput,
		"pods that do not run": sick, "data is kept": kept, "data is deleted": deleted, "data of others": ofOthers, "what the server refuses": refused,
	} {
		t.Run(name, func(t *testing.T) { test(k.with(t)) })
	}
}

// upgradeCRD installs a CRD that lacks what came later, and then the current one over a cache that was there before.
func (k cluster) upgradeCRD(env *envtest.Environment) {
	text, err := os.ReadFile("../../crds/kv3fs.io_kvcaches.yaml")
	k.must(err)
	var current, former unstructured.Unstructured
	k.must(yaml.Unmarshal(text, &current))
	k.must(yaml.Unmarshal(text, &former))
	versions := former.Object["spec"].(map[string]any)["versions"].([]any)
	properties := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties"}
	for _, later := range []string{"access", "settings", "deletionPolicy"} {
		unstructured.RemoveNestedField(versions[0].(map[string]any), append(properties, later)...)
	}
	k.must(k.Create(k.Context(), &former))
	k.eventually(func() error { return k.create("old", "{data: {hostPath: {path: /srv/old}}, capacity: 10Gi}") })
	k.must(k.Apply(k.Context(), client.ApplyConfigurationFromUnstructured(&current), client.FieldOwner("installer"), client.ForceOwnership))
	k.eventually(func() error {
		c := &v1alpha1.KVCache{}
		k.must(k.Get(k.Context(), types.NamespacedName{Name: "old"}, c))
		if c.Spec.DeletionPolicy != v1alpha1.Retain || c.Spec.Capacity != "10Gi" {
			return fmt.Errorf("the cache of the former version is read as %+v", c.Spec)
		}
		return nil
	})
}

// schema has the server refuse what cannot be meant, with a reason, and fill in what was left out.
func schema(k cluster) {
	for _, c := range []struct{ name, spec, why string }{
		{"nowhere", "{data: {}}", "exactly one of hostPath, localDisk and claim"},
		{"everywhere", "{data: {hostPath: {path: /srv/a}, claim: {name: a}}}", "exactly one of hostPath, localDisk and claim"},
		{"root", "{data: {hostPath: {path: /}}}", "absolute path with at least two parts"},
		{"up", "{data: {hostPath: {path: /srv/../etc}}}", "absolute path with at least two parts"},
		{"much", "{data: {hostPath: {path: /srv/a}}, capacity: 120%}", "must be a size such as 10Ti"},
		{"units", "{data: {hostPath: {path: /srv/a}}, capacity: 10TB}", "must be a size such as 10Ti"},
		{"alone", "{data: {hostPath: {path: /srv/a}}, pageService: {etcd: {endpoints: ['e:2379']}}}", "pageService.etcd is for hosts that share one directory"},
		{"ours", "{data: {hostPath: {path: /srv/a}}, settings: {admin-listen: 'off'}}", "one that the operator sets itself"},
		{"access", "{data: {hostPath: {path: /srv/a}}, access: [{namespace: a, directory: /b}]}", "below the cache's root"},
		{"a-name-that-is-longer-than-31-letters", "{data: {hostPath: {path: /srv/a}}}", "at most 31"},
		{"never", "{data: {hostPath: {path: /srv/a}}, updateStrategy: {maxUnavailable: 0}}", "must be a number above 0"},
	} {
		if err := k.create(c.name, c.spec); err == nil || !strings.Contains(err.Error(), c.why) {
			k.Errorf("%s: %v; want %q", c.spec, err, c.why)
		}
	}
	c := k.made("defaults", "{data: {hostPath: {path: /srv/defaults}}, placement: {nodeSelector: {name: node-a}}}")
	k.must(k.Get(k.Context(), client.ObjectKeyFromObject(c), c))
	s := c.Spec
	if s.Capacity != "80%" || s.DeletionPolicy != v1alpha1.Retain || s.PageService.Port != 18000 || s.UpdateStrategy.Type != "RollingUpdate" ||
		s.UpdateStrategy.MaxUnavailable.IntValue() != 1 || len(s.Placement.Tolerations) != 1 || s.Resources.Requests.Memory().String() != "2Gi" {
		k.Errorf("the defaults are %+v", s)
	}
	c.Spec.Data.HostPath.Path = "/srv/other"
	if err := k.Update(k.Context(), c); err == nil || !strings.Contains(err.Error(), "another directory is another cache") {
		k.Errorf("the data of a cache was changed: %v", err)
	}
}

// objects makes what a cache needs, each with its owner, and removes what it needs no more.
func objects(k cluster) {
	c := k.made("objects", "{data: {hostPath: {path: /srv/objects}}}")
	k.must(k.Get(k.Context(), client.ObjectKeyFromObject(c), c))
	// What former versions may have made, and what somebody else has.
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left", Namespace: namespace, Labels: build.Labels(c.Name),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, v1alpha1.Version().WithKind("KVCache"))}}}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: namespace, Labels: build.Labels(c.Name)}}
	k.must(k.Create(k.Context(), left))
	k.must(k.Create(k.Context(), foreign))
	in := build.Inputs{Cache: c, Namespace: namespace, Image: "kv3fs:test", OperatorImage: "kv3fs-operator:test"}
	want, err := build.All(in)
	k.must(err)
	for _, o := range want {
		k.eventually(func() error { return k.Get(k.Context(), client.ObjectKeyFromObject(o), o) })
		if !metav1.IsControlledBy(o, c) {
			k.Errorf("%T %s has no owner", o, o.GetName())
		}
	}
	k.eventually(func() error {
		if err := k.Get(k.Context(), client.ObjectKeyFromObject(left), left); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("what is needed no more is there: %w", err)
		}
		return nil
	})
	k.must(k.Get(k.Context(), client.ObjectKeyFromObject(foreign), foreign))
	// A new spec is a new configuration, and so other pods.
	set := &appsv1.DaemonSet{}
	key := types.NamespacedName{Namespace: namespace, Name: build.Name(c.Name)}
	k.must(k.Get(k.Context(), key, set))
	before := set.Spec.Template.Annotations[build.ConfigAnnotation]
	k.eventually(func() error {
		k.must(k.Get(k.Context(), client.ObjectKeyFromObject(c), c))
		c.Spec.Capacity = "5Gi"
		return k.Update(k.Context(), c)
	})
	k.eventually(func() error {
		k.must(k.Get(k.Context(), key, set))
		if now := set.Spec.Template.Annotations[build.ConfigAnnotation]; now == before || now == "" {
			return fmt.Errorf("the pods' configuration is %q, as before", now)
		}
		return nil
	})
	k.condition(c.Name, v1alpha1.Progressing, metav1.ConditionTrue, "RollingOut", "nodes have the current version")
}

// edits of others are taken back where they are of fields that the operator sets, and stay elsewhere.
func edits(k cluster) {
	k.made("edits", "{data: {hostPath: {path: /srv/edits}}}")
	key := types.NamespacedName{Namespace: namespace, Name: build.Name("edits")}
	set := &appsv1.DaemonSet{}
	k.eventually(func() error { return k.Get(k.Context(), key, set) })
	image := set.Spec.Template.Spec.Containers[0].Image
	k.eventually(func() error {
		k.must(k.Get(k.Context(), key, set))
		set.Spec.Template.Spec.Containers[0].Image = "evil:1"
		set.Annotations = map[string]string{"team": "storage"}
		return k.Update(k.Context(), set, client.FieldOwner("somebody"))
	})
	k.eventually(func() error {
		k.must(k.Get(k.Context(), key, set))
		if got := set.Spec.Template.Spec.Containers[0].Image; got != image {
			return fmt.Errorf("the image is %s", got)
		}
		return nil
	})
	if set.Annotations["team"] != "storage" {
		k.Errorf("another's annotation is gone: %v", set.Annotations)
	}
	service := &corev1.Service{}
	k.must(k.Get(k.Context(), key, service))
	k.must(k.Delete(k.Context(), service))
	k.eventually(func() error { return k.Get(k.Context(), key, service) })
	for _, f := range set.ManagedFields {
		if f.Subresource == "" && f.Operation == metav1.ManagedFieldsOperationApply && f.Manager != string(controller.Owner) {
			k.Errorf("%s owns fields, too", f.Manager)
		}
	}
}

// badInput has a condition and an event name what is wrong and the cure.
func badInput(k cluster) {
	k.made("first", "{data: {hostPath: {path: /srv/cache}}}")
	k.condition("first", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	second := k.made("second", "{data: {hostPath: {path: /srv/cache/below}}, placement: {nodeSelector: {name: node-b}}}")
	k.condition("second", v1alpha1.Ready, metav1.ConditionFalse, "DataInUse", "/srv/cache/below", "KVCache first", "node-b", "give another directory")
	k.event("second", "DataInUse")
	if err := k.Get(k.Context(), types.NamespacedName{Namespace: namespace, Name: build.Name("second")}, &appsv1.DaemonSet{}); err == nil {
		k.Error("daemons were made over the directory of another cache")
	}
	// The cure works.
	k.remove(&v1alpha1.KVCache{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
	k.condition("second", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	k.remove(second)

	k.made("claim", "{data: {claim: {name: shared}}, capacity: 2Ti}")
	k.condition("claim", v1alpha1.Ready, metav1.ConditionFalse, "ClaimMissing", "PersistentVolumeClaim shared", "make it")
	claim := &corev1.PersistentVolumeClaim{}
	k.must(yaml.Unmarshal([]byte("{metadata: {name: shared, namespace: kv3fs-system}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Ti}}}}"), claim))
	k.must(k.Create(k.Context(), claim))
	k.condition("claim", v1alpha1.Ready, metav1.ConditionFalse, "ClaimNotShared", "claim shared is ReadWriteOnce", "2 nodes", "ReadWriteMany")
	k.event("claim", "ClaimNotShared")
	zero := int64(0)
	k.must(k.Delete(k.Context(), claim, &client.DeleteOptions{GracePeriodSeconds: &zero}))
	k.eventually(func() error { // its protection is a controller's, which is not here
		k.must(client.IgnoreNotFound(k.Patch(k.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
		return client.IgnoreAlreadyExists(k.Create(k.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared", Namespace: namespace},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, Resources: claim.Spec.Resources}}))
	})
	k.eventually(func() error {
		k.must(k.Get(k.Context(), client.ObjectKeyFromObject(claim), claim))
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, claim.Spec.Resources.Requests
		return k.Status().Update(k.Context(), claim)
	})
	k.condition("claim", v1alpha1.Degraded, metav1.ConditionTrue, "CapacityAboveClaim", "capacity is 2Ti", "claim shared has 1Ti", "give a smaller capacity")

	k.made("secrets", "{data: {claim: {name: other}}, pageService: {tokenSecret: engines, etcd: {endpoints: ['e:2379'], secret: etcd}}}")
	k.condition("secrets", v1alpha1.Degraded, metav1.ConditionTrue, "ClaimMissing", "Secret engines", "Secret etcd", "pageService.etcd.secret")
	k.made("nodes", "{data: {hostPath: {path: /srv/nodes}}, placement: {nodeSelector: {gpu: none}}}")
	k.condition("nodes", v1alpha1.Ready, metav1.ConditionFalse, "NoNodes", "gpu=none", "label nodes")
}

// sick pods say in the cache's condition what their daemon said last.
func sick(k cluster) {
	k.made("sick", "{data: {hostPath: {path: /srv/sick}}}")
	k.serves(build.Name("sick"), 2, 0)
	pod := k.pod("sick", "node-a", "127.0.0.1", 1)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "daemon",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2,
			Message: "before\nkv3fs: --capacity: is more than the file system has: give less\n"}}}}
	k.must(k.Status().Update(k.Context(), pod))
	k.condition("sick", v1alpha1.Degraded, metav1.ConditionTrue, "CrashLoopBackOff", "node-a", "it ended with 2", "is more than the file system has: give less")
	k.condition("sick", v1alpha1.Ready, metav1.ConditionFalse, "NotServing", "0 of 2 nodes serve")
	k.event("sick", "CrashLoopBackOff")
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "daemon", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	k.must(k.Status().Update(k.Context(), pod))
	k.serves(build.Name("sick"), 2, 2)
	k.condition("sick", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	k.condition("sick", v1alpha1.Ready, metav1.ConditionTrue, "Serving", "2 of 2 nodes serve")
	// What cannot be read is said.
	k.eventually(func() error {
		c := &v1alpha1.KVCache{}
		k.must(k.Get(k.Context(), types.NamespacedName{Name: "sick"}, c))
		if n := c.Status.Nodes; len(n) != 1 || !strings.Contains(n[0].Message, "could not be asked") || n[0].Used != nil {
			return fmt.Errorf("of a daemon that does not answer the status says %+v", n)
		}
		return nil
	})
}

// pod makes a running pod of a cache, as a DaemonSet's controller and kubelet would, whose daemon is asked at a port.
func (k cluster) pod(cache, node, ip string, port int32) *corev1.Pod {
	k.Helper()
	set := &appsv1.DaemonSet{}
	k.eventually(func() error {
		return k.Get(k.Context(), types.NamespacedName{Namespace: namespace, Name: build.Name(cache)}, set)
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: cache + "-" + node, Namespace: namespace, Labels: set.Spec.Template.Labels}, Spec: set.Spec.Template.Spec}
	pod.Spec.NodeName = node
	pod.Spec.PriorityClassName = ""
	for i := range pod.Spec.Containers[0].Ports {
		if p := &pod.Spec.Containers[0].Ports[i]; p.Name == build.AdminPortName {
			p.ContainerPort = port
		}
	}
	// A Pod's account would have to exist first.
	k.must(client.IgnoreAlreadyExists(k.Create(k.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}})))
	k.must(k.Create(k.Context(), pod))
	k.Cleanup(func() {
		zero := int64(0)
		if err := k.Delete(context.Background(), pod, &client.DeleteOptions{GracePeriodSeconds: &zero}); client.IgnoreNotFound(err) != nil {
			k.Error(err)
		}
	})
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	k.must(k.Status().Update(k.Context(), pod))
	return pod
}

// kept: without being told, nothing waits for a deletion and nothing removes files.
func kept(k cluster) {
	c := k.made("kept", "{data: {hostPath: {path: /srv/kept}}}")
	k.condition("kept", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	k.must(k.Get(k.Context(), client.ObjectKeyFromObject(c), c))
	if len(c.Finalizers) != 0 {
		k.Errorf("it waits for %v", c.Finalizers)
	}
	k.must(k.Delete(k.Context(), c))
	if err := k.Get(k.Context(), client.ObjectKeyFromObject(c), c); client.IgnoreNotFound(err) != nil || err == nil {
		k.Errorf("a cache that was deleted is there: %v", err)
	}
	k.noErasure("kept")
}

func (k cluster) noErasure(name string) {
	k.Helper()
	var sets appsv1.DaemonSetList
	k.must(k.List(k.Context(), &sets, client.MatchingLabels(build.Selector(name, build.ComponentErase))))
	if len(sets.Items) != 0 {
		k.Error("files are removed")
	}
}

// deleted: told so, the operator stops the daemons, has the files removed on every node, and only then lets the cache go.
func deleted(k cluster) {
	c := k.made("deleted", "{data: {hostPath: {path: /srv/deleted}}, deletionPolicy: Delete}")
	key := client.ObjectKeyFromObject(c)
	k.eventually(func() error {
		k.must(k.Get(k.Context(), key, c))
		if len(c.Finalizers) != 1 {
			return fmt.Errorf("it waits for %v", c.Finalizers)
		}
		return nil
	})
	pod := k.pod("deleted", "node-a", "127.0.0.1", 1)
	k.must(k.Delete(k.Context(), c))
	k.condition("deleted", v1alpha1.Progressing, metav1.ConditionTrue, "DeletingData", "1 daemons are stopping")
	k.noErasure("deleted")
	zero := int64(0)
	k.must(k.Delete(k.Context(), pod, &client.DeleteOptions{GracePeriodSeconds: &zero}))
	k.serves(build.EraseName("deleted"), 2, 1)
	k.condition("deleted", v1alpha1.Progressing, metav1.ConditionTrue, "DeletingData", "removed on 1 of 2 nodes", "Retain")
	k.serves(build.EraseName("deleted"), 2, 2)
	k.eventually(func() error {
		if err := k.Get(k.Context(), key, c); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("the files are gone, and the cache is there: %v", err)
		}
		return nil
	})
	// Who changes their mind keeps what is left.
	c = k.made("spared", "{data: {hostPath: {path: /srv/spared}}, deletionPolicy: Delete}")
	k.pod("spared", "node-a", "127.0.0.1", 1)
	k.must(k.Delete(k.Context(), c))
	k.condition("spared", v1alpha1.Progressing, metav1.ConditionTrue, "DeletingData")
	k.eventually(func() error {
		k.must(k.Get(k.Context(), client.ObjectKeyFromObject(c), c))
		c.Spec.DeletionPolicy = v1alpha1.Retain
		return k.Update(k.Context(), c)
	})
	k.eventually(func() error {
		if err := k.Get(k.Context(), client.ObjectKeyFromObject(c), c); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it waits although nothing is to be deleted: %v", err)
		}
		return nil
	})
	k.noErasure("spared")
}

// gone waits until a cache is.
func (k cluster) gone(name string) {
	k.Helper()
	k.eventually(func() error {
		c := &v1alpha1.KVCache{}
		if err := k.Get(k.Context(), types.NamespacedName{Name: name}, c); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("%s is there: %v", name, err)
		}
		return nil
	})
}

// ofOthers: files that are also another cache's are never removed, whichever was there first.
func ofOthers(k cluster) {
	// One that is blocked by an older one has no files.
	k.made("owner", "{data: {hostPath: {path: /srv/owned}}}")
	k.condition("owner", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	c := k.made("thief", "{data: {hostPath: {path: /srv/owned/below}}, deletionPolicy: Delete}")
	k.condition("thief", v1alpha1.Ready, metav1.ConditionFalse, "DataInUse")
	k.must(k.Delete(k.Context(), c))
	k.gone("thief")
	k.noErasure("thief")
	// One that a node's label brings to another's.
	c = k.made("mover", "{data: {hostPath: {path: /srv/moved}}, deletionPolicy: Delete, placement: {nodeSelector: {name: node-a}}}")
	k.condition("mover", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	k.made("settled", "{data: {hostPath: {path: /srv/moved}}, placement: {nodeSelector: {name: node-b}}}")
	k.condition("settled", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	k.eventually(func() error {
		k.must(k.Get(k.Context(), client.ObjectKeyFromObject(c), c))
		c.Spec.Placement.NodeSelector = map[string]string{"name": "node-b"}
		return k.Update(k.Context(), c)
	})
	k.condition("settled", v1alpha1.Degraded, metav1.ConditionTrue, "DataInUse", "KVCache mover on node-b")
	k.must(k.Delete(k.Context(), c))
	k.event("mover", "DataInUse")
	k.gone("mover")
	k.noErasure("mover")
	k.condition("settled", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	// One that waits for the directory has no files in it, and keeps none there.
	c = k.made("leaves", "{data: {hostPath: {path: /srv/left}}, deletionPolicy: Delete}")
	k.condition("leaves", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
	k.made("waits", "{data: {hostPath: {path: /srv/left}}}")
	k.condition("waits", v1alpha1.Ready, metav1.ConditionFalse, "DataInUse")
	k.must(k.Delete(k.Context(), c))
	k.serves(build.EraseName("leaves"), 2, 2)
	k.gone("leaves")
	// Without a node, nobody removes anything, and that is said.
	c = k.made("nowhere", "{data: {hostPath: {path: /srv/nowhere}}, deletionPolicy: Delete, placement: {nodeSelector: {gpu: none}}}")
	k.condition("nowhere", v1alpha1.Degraded, metav1.ConditionTrue, "NoNodes")
	k.must(k.Delete(k.Context(), c))
	k.serves(build.EraseName("nowhere"), 0, 0)
	k.event("nowhere", "NoNodes")
	k.gone("nowhere")
}

// refused: what the server does not take is a condition and an event, and over once it does.
func refused(k cluster) {
	foreign := &appsv1.DaemonSet{}
	k.must(yaml.Unmarshal([]byte("{metadata: {name: kv3fs-refused, namespace: kv3fs-system}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}]}}}}"), foreign))
	k.must(k.Create(k.Context(), foreign))
	k.made("refused", "{data: {hostPath: {path: /srv/refused}}}")
	k.condition("refused", v1alpha1.Degraded, metav1.ConditionTrue, "ApplyFailed", "DaemonSet kv3fs-refused", "immutable")
	k.event("refused", "ApplyFailed")
	k.must(k.Delete(k.Context(), foreign))
	k.condition("refused", v1alpha1.Degraded, metav1.ConditionFalse, "AsExpected")
}

// status is read from a real daemon, with the token and certificate of the Secret.
func status(k cluster) {
	k.made("status", "{data: {hostPath: {path: /srv/status}}, capacity: 1Gi}")
	secret := &corev1.Secret{}
	k.eventually(func() error {
		return k.Get(k.Context(), types.NamespacedName{Namespace: namespace, Name: build.SecretName("status")}, secret)
	})
	d := daemontest.Serve(k.T, "status", secret.Data)
	k.serves(build.Name("status"), 1, 1)
	k.pod("status", "node-a", "127.0.0.1", d.Port)
	k.condition("status", v1alpha1.Ready, metav1.ConditionTrue, "Serving")
	c := &v1alpha1.KVCache{}
	k.eventually(func() error {
		k.must(k.Get(k.Context(), types.NamespacedName{Name: "status"}, c))
		n := c.Status.Nodes
		if len(n) != 1 || n[0].Name != "node-a" || !n[0].Ready || n[0].Used == nil || n[0].Used.Value() < 8<<20 || c.Status.Used == nil || c.Status.Hosts != 1 || c.Status.ReadyHosts != 1 {
			return fmt.Errorf("the status is %+v", c.Status)
		}
		return nil
	})
	// The page service has found one key of two.
	d.LookUp(k.T)
	k.eventually(func() error {
		k.must(k.Get(k.Context(), types.NamespacedName{Name: "status"}, c))
		if ok := regexp.MustCompile(`^[0-9.]+%$`).MatchString(c.Status.HitRate); !ok || c.Status.Nodes[0].HitRate != c.Status.HitRate {
			return fmt.Errorf("the hit rate is %q, and %q on the node", c.Status.HitRate, c.Status.Nodes[0].HitRate)
		}
		return nil
	})
	d.Stop(k.T)
	k.eventually(func() error {
		k.must(k.Get(k.Context(), types.NamespacedName{Name: "status"}, c))
		if n := c.Status.Nodes; len(n) != 1 || !strings.Contains(n[0].Message, "could not be asked") {
			return fmt.Errorf("of a daemon that was stopped the status says %+v", n)
		}
		return nil
	})
}
