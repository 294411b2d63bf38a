package build

import (
	"fmt"
	"maps"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
)

// ConfigAnnotation has the digest of the configuration that a pod was made for, so that another configuration is another pod.
const ConfigAnnotation = "kv3fs.io/config"

// critical pods are ended last when a node shuts down, and get room on one that is full.
const critical = "system-node-critical"

// daemonSet runs a daemon on each node.
func daemonSet(in Inputs, config string) *appsv1.DaemonSet {
	spec := in.Cache.Spec
	set := nodesOf(in, Name(in.Cache.Name), ComponentDaemon, corev1.PodSpec{
		// The kernel tells the daemon who calls by process ids; in a PID namespace of its own it would not know them.
		HostPID: true,
		// Longer than the daemon waits for clients to leave.
		TerminationGracePeriodSeconds: ptr.To(int64(60)),
		Containers:                    []corev1.Container{daemon(in), plugin(in)},
		Volumes:                       volumes(in),
	})
	set.Spec.Template.Annotations = map[string]string{ConfigAnnotation: config}
	set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.DaemonSetUpdateStrategyType(spec.UpdateStrategy.Type)}
	if spec.UpdateStrategy.Type == string(appsv1.RollingUpdateDaemonSetStrategyType) {
		set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: spec.UpdateStrategy.MaxUnavailable}
	}
	return set
}

// nodesOf returns a DaemonSet on the nodes of a cache.
func nodesOf(in Inputs, name, component string, pod corev1.PodSpec) *appsv1.DaemonSet {
	placement := in.Cache.Spec.Placement
	labels := with(Labels(in.Cache.Name), component)
	pod.NodeSelector = NodeSelector(in.Cache)
	pod.Tolerations = placement.Tolerations
	pod.PriorityClassName = critical
	pod.AutomountServiceAccountToken = ptr.To(false)
	pod.EnableServiceLinks = ptr.To(false)
	return &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: func() metav1.ObjectMeta {
			m := meta(in, name)
			m.Labels = labels
			return m
		}(),
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: Selector(in.Cache.Name, component)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       pod,
			},
		},
	}
}

// NodeSelector returns the labels of the nodes that have a cache.
func NodeSelector(cache *v1alpha1.KVCache) map[string]string {
	selector := map[string]string{corev1.LabelOSStable: "linux"}
	maps.Copy(selector, cache.Spec.Placement.NodeSelector)
	return selector
}

func daemon(in Inputs) corev1.Container {
	spec := in.Cache.Spec
	ports := []corev1.ContainerPort{
		{Name: AdminPortName, ContainerPort: AdminPort, Protocol: corev1.ProtocolTCP},
		{Name: "pages", ContainerPort: spec.PageService.Port, Protocol: corev1.ProtocolTCP},
	}
	env := []corev1.EnvVar{
		{Name: "KV3FS_IDENTITY", ValueFrom: fieldOf("spec.nodeName")},
	}
	if etcd := spec.PageService.Etcd; etcd != nil {
		ports = append(ports, corev1.ContainerPort{Name: "peers", ContainerPort: PeerPort, Protocol: corev1.ProtocolTCP})
		env = append(env,
			corev1.EnvVar{Name: "POD_IP", ValueFrom: fieldOf("status.podIP")},
			// In brackets, which IPv6 needs and IPv4 may have.
			corev1.EnvVar{Name: "KV3FS_PAGES_PEER_ADDRESS", Value: fmt.Sprintf("[$(POD_IP)]:%d", PeerPort)})
		if in.Etcd.Password {
			env = append(env, corev1.EnvVar{Name: "KV3FS_PAGES_STORE_USER", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: etcd.Secret}, Key: "username"}}})
		}
	}
	return corev1.Container{
		Name:  "daemon",
		Image: image(in),
		// hold starts a daemon that crashes again, and keeps its mount meanwhile.
		Args:            []string{"hold", "--", "serve", "--config", path.Join(configDir, configFile)},
		Env:             env,
		Ports:           ports,
		Resources:       spec.Resources,
		SecurityContext: privileged(),
		VolumeMounts:    mounts(in),
		// A trip through a ring, as an engine makes it; looking through a large directory may take long.
		StartupProbe: trip(2, 300, MountPath(in.Cache.Name)),
		// The same, and what the daemon says of its data directory, its room and its page service.
		ReadinessProbe: trip(10, 3, "--daemon", MountPath(in.Cache.Name)),
		// Never through the mount or to the disk: one that hangs must not become a restart that every engine on the node sees.
		LivenessProbe: alive(AdminPortName),
		// What the daemon says when it cannot start is what the cache's condition says.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// privileged is what a container needs whose mounts are to reach the node, and so the pods of engines.
func privileged() *corev1.SecurityContext {
	return &corev1.SecurityContext{Privileged: ptr.To(true), RunAsUser: ptr.To(int64(0)), RunAsGroup: ptr.To(int64(0)), ReadOnlyRootFilesystem: ptr.To(true)}
}

func image(in Inputs) string {
	if in.Cache.Spec.Image != "" {
		return in.Cache.Spec.Image
	}
	return in.Image
}

// trip asks whether engines are served.
func trip(everySeconds, failures int32, args ...string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"/usr/bin/kv3fs", "ready"}, args...)}},
		PeriodSeconds: everySeconds, TimeoutSeconds: 5, FailureThreshold: failures,
	}
}

// alive asks whether a process answers at all.
func alive(port string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString(port), Scheme: corev1.URISchemeHTTPS}},
		PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6,
	}
}

func fieldOf(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
}

func mounts(in Inputs) []corev1.VolumeMount {
	spec := in.Cache.Spec
	data := corev1.VolumeMount{Name: "data", MountPath: dataDir}
	if spec.Data.LocalDisk != nil {
		data.MountPropagation = ptr.To(corev1.MountPropagationHostToContainer)
	}
	all := []corev1.VolumeMount{
		{Name: "config", MountPath: configDir, ReadOnly: true},
		{Name: "secret", MountPath: secretDir, ReadOnly: true},
		data,
		{Name: "mount", MountPath: mountDir(in.Cache.Name), MountPropagation: ptr.To(corev1.MountPropagationBidirectional)},
		{Name: "shm", MountPath: "/dev/shm"},
		{Name: "run", MountPath: runDir},
		{Name: "tmp", MountPath: "/tmp"},
	}
	if etcd := spec.PageService.Etcd; etcd != nil && etcd.Secret != "" {
		all = append(all, corev1.VolumeMount{Name: "etcd", MountPath: etcdDir, ReadOnly: true})
	}
	if spec.PageService.TokenSecret != "" {
		all = append(all, corev1.VolumeMount{Name: "pages", MountPath: pagesDir, ReadOnly: true})
	}
	return all
}

func volumes(in Inputs) []corev1.Volume {
	spec := in.Cache.Spec
	all := []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: Name(in.Cache.Name)}}}},
		secretVolume("secret", SecretName(in.Cache.Name)),
		dataVolume(spec.Data),
		hostDir("mount", mountDir(in.Cache.Name), corev1.HostPathDirectoryOrCreate),
		// Buffers and rings of processes that use the node's own.
		hostDir("shm", "/dev/shm", corev1.HostPathDirectory),
		// A tmpfs that outlives the pod, as rings do.
		hostDir("run", "/run/kv3fs.io/"+in.Cache.Name, corev1.HostPathDirectoryOrCreate),
		hostDir("kubelet", kubeletDir, corev1.HostPathDirectory),
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	if etcd := spec.PageService.Etcd; etcd != nil && etcd.Secret != "" {
		all = append(all, secretVolume("etcd", etcd.Secret))
	}
	if spec.PageService.TokenSecret != "" {
		all = append(all, secretVolume("pages", spec.PageService.TokenSecret))
	}
	return all
}

func dataVolume(data v1alpha1.Data) corev1.Volume {
	switch {
	case data.HostPath != nil:
		return hostDir("data", data.HostPath.Path, corev1.HostPathDirectoryOrCreate)
	case data.LocalDisk != nil:
		return hostDir("data", path.Dir(data.LocalDisk.MountPoint), corev1.HostPathDirectory)
	default:
		return corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: data.Claim.Name}}}
	}
}

func hostDir(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

// secretVolume is one that only root may read, as kv3fs wants of its tokens.
func secretVolume(name, secret string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: ptr.To(int32(0o400))}}}
}
