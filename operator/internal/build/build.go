// Package build says which objects a KVCache becomes. It is pure: the same cache is the same objects.
package build

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
)

// Labels of everything that is made for a cache.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance" // the cache
	LabelManagedBy = "app.kubernetes.io/managed-by"
	LabelComponent = "app.kubernetes.io/component"

	App       = "kv3fs"
	ManagedBy = "kv3fs-operator"

	ComponentDaemon = "daemon"
	ComponentErase  = "erase"
)

// Ports of a daemon. That of the page service is in the spec.
const (
	AdminPort     = 9180
	AdminPortName = "admin"
	PeerPort      = 18001
)

// Inputs are what the objects are made from.
type Inputs struct {
	Cache         *v1alpha1.KVCache
	Namespace     string
	Image         string            // of kv3fs, unless the cache names one
	OperatorImage string            // has the program that erases
	Secret        map[string][]byte // of package certs
	Etcd          EtcdSecret
}

// EtcdSecret says what there is in the Secret that the cache names for etcd.
type EtcdSecret struct {
	CA, Certificate, Password bool
}

// Name is that of what is made for a cache.
func Name(cache string) string { return "kv3fs-" + cache }

// SecretName is that of the Secret with what the operator and the daemons know each other by.
func SecretName(cache string) string { return Name(cache) + "-daemon" }

// ServerName is the name in the daemons' certificate. It is no host's: daemons are reached by address.
func ServerName(cache string) string { return cache + ".daemons.kv3fs.io" }

// MountPath is where the mount is, on nodes and in the daemon's container.
func MountPath(cache string) string { return mountDir(cache) + "/mnt" }

func mountDir(cache string) string { return "/var/lib/kv3fs.io/" + cache }

// Labels are those by which what is made for a cache is found.
func Labels(cache string) map[string]string {
	return map[string]string{LabelName: App, LabelInstance: cache, LabelManagedBy: ManagedBy}
}

// Selector finds the pods of a component.
func Selector(cache, component string) map[string]string {
	return map[string]string{LabelInstance: cache, LabelManagedBy: ManagedBy, LabelComponent: component}
}

// All returns what a cache needs, in the order in which it is made.
func All(in Inputs) ([]client.Object, error) {
	config, err := Config(in)
	if err != nil {
		return nil, err
	}
	return []client.Object{
		configMap(in, config),
		secret(in),
		service(in),
		csiDriver(in),
		daemonSet(in, digest(config)),
	}, nil
}

func configMap(in Inputs, config string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta(in, Name(in.Cache.Name)),
		Data:       map[string]string{configFile: config},
	}
}

func secret(in Inputs) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta(in, SecretName(in.Cache.Name)),
		Type:       corev1.SecretTypeOpaque,
		Data:       in.Secret,
	}
}

// service has engines reach the page service of their own node, and Prometheus all daemons.
func service(in Inputs) *corev1.Service {
	ports := []corev1.ServicePort{
		{Name: "pages", Port: in.Cache.Spec.PageService.Port, TargetPort: intstr.FromString("pages"), Protocol: corev1.ProtocolTCP},
		{Name: AdminPortName, Port: AdminPort, TargetPort: intstr.FromString(AdminPortName), Protocol: corev1.ProtocolTCP},
	}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(in, Name(in.Cache.Name)),
		Spec: corev1.ServiceSpec{
			Selector:              Selector(in.Cache.Name, ComponentDaemon),
			Ports:                 ports,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyLocal),
		},
	}
}

func meta(in Inputs, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:      name,
		Namespace: in.Namespace,
		Labels:    Labels(in.Cache.Name),
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(in.Cache, v1alpha1.Version().WithKind("KVCache")),
		},
	}
}

func with(labels map[string]string, component string) map[string]string {
	labels = maps.Clone(labels)
	labels[LabelComponent] = component
	return labels
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

func serviceNames(in Inputs) []string {
	name := Name(in.Cache.Name)
	return []string{name, fmt.Sprintf("%s.%s", name, in.Namespace), fmt.Sprintf("%s.%s.svc", name, in.Namespace),
		fmt.Sprintf("%s.%s.svc.cluster.local", name, in.Namespace)}
}
