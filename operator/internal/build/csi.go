package build

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kv3fs/kv3fs/operator/internal/certs"
)

const (
	kubeletDir   = "/var/lib/kubelet"
	csiAdminPort = 9181
)

// Driver is the name of the CSI driver of a cache. Each cache has one of its own, so that several can be on a node.
func Driver(cache string) string { return cache + ".kv3fs.io" }

// csiDriver tells kubelet what the plugin can do.
func csiDriver(in Inputs) *storagev1.CSIDriver {
	m := meta(in, Driver(in.Cache.Name))
	m.Namespace = ""
	// Pods of namespaces that are restricted may have such volumes inline.
	m.Labels["security.kubernetes.io/csi-ephemeral-volume-profile"] = "restricted"
	return &storagev1.CSIDriver{
		TypeMeta:   metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"},
		ObjectMeta: m,
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       ptr.To(false),
			PodInfoOnMount:       ptr.To(true), // says which namespace asks
			FSGroupPolicy:        ptr.To(storagev1.NoneFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
			StorageCapacity:      ptr.To(false),
			RequiresRepublish:    ptr.To(false), // the plugin recovers volumes by itself
			SELinuxMount:         ptr.To(false),
		},
	}
}

// plugin is the container that brings the mount into engines' pods.
func plugin(in Inputs) corev1.Container {
	args := []string{
		"csi", "--name", Driver(in.Cache.Name), "--mount", MountPath(in.Cache.Name), "--data", dataPath(in),
		"--admin-listen", fmt.Sprintf("0.0.0.0:%d", csiAdminPort),
		"--admin-token-file", path.Join(secretDir, certs.Token), "--admin-cert", path.Join(secretDir, "tls.crt"), "--admin-key", path.Join(secretDir, "tls.key"),
		"--log-format", "json",
	}
	for _, a := range in.Cache.Spec.Access {
		args = append(args, "--allow", a.Namespace+"="+a.Directory)
	}
	data := corev1.VolumeMount{Name: "data", MountPath: dataDir}
	if in.Cache.Spec.Data.LocalDisk != nil {
		data.MountPropagation = ptr.To(corev1.MountPropagationHostToContainer)
	}
	return corev1.Container{
		Name: "csi", Image: image(in), Args: args,
		Env:             []corev1.EnvVar{{Name: "KV3FS_NODE", ValueFrom: fieldOf("spec.nodeName")}},
		Ports:           []corev1.ContainerPort{{Name: "csi-admin", ContainerPort: csiAdminPort, Protocol: corev1.ProtocolTCP}},
		SecurityContext: privileged(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "secret", MountPath: secretDir, ReadOnly: true},
			data,
			{Name: "mount", MountPath: mountDir(in.Cache.Name), MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)},
			{Name: "kubelet", MountPath: kubeletDir, MountPropagation: ptr.To(corev1.MountPropagationBidirectional)},
			{Name: "tmp", MountPath: "/tmp"},
		},
		LivenessProbe:            alive("csi-admin"),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}
