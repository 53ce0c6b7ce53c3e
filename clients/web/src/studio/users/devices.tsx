// The connected devices, and ending their streams or refusing their tokens.

import { useState } from 'preact/hooks';
import { type Device, useDevices } from '../client';
import { post } from '../api';
import { useMayEdit, useTyped } from '../hooks';
import { Ago, type Column, Confirmed, Failure, Find, PAGE, Pager, Section, Table, Waiting, ways } from '../parts';
import { count, counted, size } from '../words';

const keyOf = (device: Device): string => `${device.process} ${device.user} ${device.client} ${device.connected}`;

export function DeviceList({ explain }: { explain: (user: string) => void }) {
  const mayEdit = useMayEdit();
  const [sought, setSought] = useState('');
  const [first, setFirst] = useState(0);
  const devices = useDevices(useTyped(sought), first, PAGE, 5000);
  const end = (device: Device) => async () => {
    await post('terminate', { user: device.user, ...(device.client ? { client: device.client } : {}) });
    devices.again();
  };
  const revoke = (device: Device) => async () => {
    await post('revoke', { kind: 'sub', value: device.user });
    devices.again();
  };
  const columns: Column<Device>[] = [
    {
      title: 'User',
      cell: (device) => (
        <button type="button" class="link" onClick={() => explain(device.user)} title="What is this user sent?">
          {device.user}
        </button>
      ),
      wide: true
    },
    { title: 'Client', cell: (device) => <code>{device.client ?? '–'}</code>, wide: true },
    { title: 'Program', cell: (device) => device.user_agent ?? '–', wide: true },
    { title: 'Connected', cell: (device) => <Ago at={device.connected} /> },
    { title: 'Token ends', cell: (device) => <Ago at={device.token_expires} /> },
    { title: 'Buckets', cell: (device) => count(device.buckets), number: true },
    { title: 'Ops', cell: (device) => count(device.operations), number: true },
    { title: 'Sent', cell: (device) => size(device.bytes), number: true }
  ];
  if (mayEdit) {
    columns.push({
      title: 'Actions',
      tools: true,
      cell: (device) => (
        <>
          <Confirmed
            label="End…"
            title="End the stream"
            question={`The stream of ${device.client ?? 'all clients'} of ${device.user} ends. The device may connect again.`}
            act={end(device)}
            testid="end-device"
          />
          <Confirmed
            label="Revoke…"
            title="Refuse the tokens of this user"
            question={`All tokens of ${device.user} that were issued until now are refused, on all devices. Signing in again works.`}
            act={revoke(device)}
            testid="revoke-user"
          />
        </>
      )
    });
  }
  const { value } = devices;
  return (
    <Section
      title="Connected devices"
      beside={
        value && (
          <>
            {counted(value.total, 'device')}
            {(value.total > PAGE || sought) && (
              <Find
                value={sought}
                what="a user or client"
                change={(next) => {
                  setSought(next);
                  setFirst(0);
                }}
              />
            )}
          </>
        )
      }
      testid="devices"
    >
      <Failure error={devices.error} />
      {value ? (
        <>
          <Table
            label="Connected devices"
            rows={value.clients}
            columns={columns}
            keyOf={keyOf}
            none={value.total ? 'No connected device fits.' : 'No device is connected.'}
          />
          <Pager first={value.place} shown={value.clients.length} of={value.found} {...ways(value.place, value.place + PAGE < value.found, setFirst)} />
        </>
      ) : (
        !devices.error && <Waiting what="Asking who is connected" />
      )}
    </Section>
  );
}
