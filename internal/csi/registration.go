package csi

import (
	"context"
	"log/slog"
	"sync/atomic"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar answers kubelet, which finds its socket in the directory of plugins and asks what is behind it.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	registered     atomic.Bool
	log            *slog.Logger
}

// GetInfo says where the plugin is found. The path is the host's, too.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus hears whether kubelet has taken the plugin. It tries again by itself.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	r.registered.Store(s.GetPluginRegistered())
	if s.GetPluginRegistered() {
		r.log.Info("kubelet has registered the plugin", "name", r.name, "endpoint", r.endpoint)
	} else {
		r.log.Error("kubelet does not register the plugin", "name", r.name, "endpoint", r.endpoint, "why", s.GetError(),
			"cure", "mount kubelet's directory into this container under the same path")
	}
	return &registration.RegistrationStatusResponse{}, nil
}
