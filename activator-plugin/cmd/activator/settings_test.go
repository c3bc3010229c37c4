package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

func TestSettingsAreFollowedAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		config := func(data map[string]string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}, Data: data}
		}
		kube := fake.NewClientset(config(map[string]string{"mode": "lend"}))
		live, err := followSettings(withDynamic(t.Context()), kube, zap.New(core).Sugar())
		if err != nil {
			t.Fatal("followSettings() =", err)
		}
		if got := live.For("default").ModeOf(nil); got != api.ModeObserve {
			t.Errorf("before the settings are read the mode is %s, want observe", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			live.Run(ctx)
		}()
		time.Sleep(time.Minute)
		edit := func(data map[string]string) {
			if _, err := kube.CoreV1().ConfigMaps(settings.Namespace).Update(ctx, config(data), metav1.UpdateOptions{}); err != nil {
				t.Fatal("Update() =", err)
			}
			synctest.Wait()
		}
		for _, mode := range []string{"on", "on", "full", "on"} {
			edit(map[string]string{"mode": mode})
		}
		if got := live.For("default").ModeOf(nil); got != api.ModeFull {
			t.Errorf("after a bad edit the mode is %s, want that before it", got)
		}
		edit(map[string]string{"mode": "full", "source": "owners"})
		edit(map[string]string{"mode": "full", "source": "owners", "_example": "changes nothing"})
		cancel()
		<-done

		var got []string
		for _, entry := range logs.All() {
			got = append(got, fmt.Sprint(entry.Level, " ", entry.Message, " ", entry.ContextMap()))
		}
		want := []string{
			"info Libra's settings map[domain: maxMode:full minLoan:100ms mode:lend placement:default safeguardPercent:80 source:node]",
			`warn Cannot read or apply some of Libra's settings. This is logged once. map[error:not all settings are accepted: key "mode" of ConfigMap libra-system/config-libra: ` +
				`mode is "on", want observe, lend or full; until it is corrected, "lend" applies`,
			"info Libra's settings map[domain: maxMode:full minLoan:100ms mode:full placement:default safeguardPercent:80 source:node]",
			`warn Cannot read or apply some of Libra's settings. This is logged once. map[error:not all settings are accepted: key "mode" of ConfigMap libra-system/config-libra: ` +
				`mode is "on", want observe, lend or full; until it is corrected, "full" applies`,
			"info Libra's settings map[domain: maxMode:full minLoan:100ms mode:full placement:default safeguardPercent:80 source:owners]",
		}
		if len(got) != len(want) {
			t.Fatalf("logged %q, want %q", got, want)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("logged %q, want %q", got[i], want[i])
			}
		}
	})
}
