// The line that tells how a device's sync is, and the progress bar of a long download.

import type { SyncStatus } from '@powersync/web';
import { h } from './dom';

type State = 'offline' | 'connecting' | 'downloading' | 'uploading' | 'synced' | 'error';

export class StatusLine {
  readonly element = h('p', { class: 'status', role: 'status', 'data-testid': 'status' });
  readonly progress = h('progress', { class: 'progress', max: '1', hidden: true, 'aria-label': 'Download' });

  private status: SyncStatus | undefined;
  private offline = false;
  private waiting = 0;

  showStatus(status: SyncStatus, offline: boolean): void {
    this.status = status;
    this.showOffline(offline);
  }

  showOffline(offline: boolean): void {
    this.offline = offline;
    this.show();
  }

  showWaiting(count: number): void {
    this.waiting = count;
    this.show();
  }

  private show(): void {
    const state = this.state();
    this.element.dataset['state'] = state;
    this.element.dataset['waiting'] = String(this.waiting);
    const text = [this.text(state), ...this.waitingText(state)].join(' · ');
    // Written only when it differs, since a screen reader speaks every change.
    if (this.element.textContent !== text) this.element.textContent = text;
    this.element.title = this.status?.downloadError?.message ?? this.status?.uploadError?.message ?? '';
    const progress = this.status?.downloadProgress;
    this.progress.hidden = state !== 'downloading' || !progress;
    this.progress.value = progress?.downloadedFraction ?? 0;
  }

  private state(): State {
    const status = this.status;
    if (this.offline) return 'offline';
    if (!status?.connected) return status?.downloadError ? 'error' : 'connecting';
    if (status.uploadError) return 'error';
    if (status.downloading) return 'downloading';
    if (status.uploading || this.waiting > 0) return 'uploading';
    return status.hasSynced ? 'synced' : 'downloading';
  }

  private text(state: State): string {
    switch (state) {
      case 'offline':
        return 'Offline';
      case 'connecting':
        return 'Connecting…';
      case 'downloading':
        return 'Downloading…';
      case 'uploading':
        return 'Uploading…';
      case 'error':
        return this.status?.connected ? 'The upload failed, trying again' : 'Not reachable, trying again';
      case 'synced': {
        const at = this.status?.lastSyncedAt;
        return at ? `Synced ${at.toLocaleTimeString()}` : 'Synced';
      }
    }
  }

  private waitingText(state: State): string[] {
    if (this.waiting === 0 || state === 'synced') return [];
    return [this.waiting === 1 ? '1 change waiting' : `${this.waiting} changes waiting`];
  }
}
