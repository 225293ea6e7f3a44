"""Hardware monitors: chips and sensors under names that outlast a reboot."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.machine import FakeHost
from support.reading import ORIGIN, Label, numbers, read_once, readings
from support.trees import DRIVE, server_tree

from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.hwmon import HWMON_ROOT, HwmonSource

TEMPERATURE = "railscope_sensor_temperature_celsius"
TEMPERATURE_LIMIT = "railscope_sensor_temperature_limit_celsius"
ALARM = "railscope_sensor_alarm"
OFF = OSError(errno.ENODATA, "No data available")
SLOW_BUS_FAILS = OSError(errno.EIO, "Input/output error")


def add_chip(
    host: FakeHost, number: int, name: str, device: str = "", **files: object
) -> dict[str, str]:
    """Add a chip; return the path of each of its files."""
    directory = f"{HWMON_ROOT}/hwmon{number}"
    host.files[f"{directory}/name"] = f"{name}\n"
    if device:
        host.files[f"{device}/uevent"] = ""
        host.links[f"{directory}/device"] = device
    host.files |= {f"{directory}/{file}": content for file, content in files.items()}
    return {file: f"{directory}/{file}" for file in files}


def test_sensors_of_a_server_in_base_units() -> None:
    host = FakeHost()
    add_chip(
        host,
        0,
        "coretemp",
        "/sys/devices/platform/coretemp.0",
        temp1_label="Package id 0\n",
        temp1_input="47000\n",
        temp1_max="84000\n",
        temp1_crit="94000\n",
        temp1_crit_alarm="0\n",
    )
    add_chip(
        host,
        1,
        "nct6798",
        "/sys/devices/platform/nct6775.656",
        fan2_input="8400\n",
        fan2_min="600\n",
        fan2_alarm="1\n",
        in0_input="1025\n",
        in0_max="1744\n",
        temp7_fault="1\n",
    )
    add_chip(
        host,
        2,
        "power_meter",
        "/sys/devices/LNXSYSTM:00/ACPI000D:00",
        power1_average="412000000\n",
        power1_cap="900000000\n",
        power1_average_interval="1000\n",
    )
    add_chip(
        host,
        3,
        "pmbus",
        "/sys/bus/i2c/7-0058",
        curr1_input="33500\n",
        power1_input="402000000\n",
        energy1_input="4711000000\n",
    )
    found = numbers(read_once(HwmonSource(), host).frame)
    assert found == {
        (TEMPERATURE, ("coretemp", "coretemp.0", "Package id 0")): 47,
        (TEMPERATURE_LIMIT, ("coretemp", "coretemp.0", "Package id 0", "max")): 84,
        (TEMPERATURE_LIMIT, ("coretemp", "coretemp.0", "Package id 0", "crit")): 94,
        (ALARM, ("coretemp", "coretemp.0", "Package id 0", "crit")): 0,
        ("railscope_sensor_fan_rpm", ("nct6798", "nct6775.656", "fan2")): 8400,
        ("railscope_sensor_fan_limit_rpm", ("nct6798", "nct6775.656", "fan2", "min")): 600,
        (ALARM, ("nct6798", "nct6775.656", "fan2", "any")): 1,
        (ALARM, ("nct6798", "nct6775.656", "temp7", "fault")): 1,
        ("railscope_sensor_voltage_volts", ("nct6798", "nct6775.656", "in0")): 1.025,
        ("railscope_sensor_voltage_limit_volts", ("nct6798", "nct6775.656", "in0", "max")): 1.744,
        ("railscope_sensor_average_power_watts", ("power_meter", "ACPI000D:00", "power1")): 412,
        (
            "railscope_sensor_power_limit_watts",
            ("power_meter", "ACPI000D:00", "power1", "cap"),
        ): 900,
        ("railscope_sensor_current_amperes", ("pmbus", "7-0058", "curr1")): 33.5,
        ("railscope_sensor_power_watts", ("pmbus", "7-0058", "power1")): 402,
        ("railscope_sensor_energy_joules_total", ("pmbus", "7-0058", "energy1")): 4711,
    }


def test_grace_names_its_power_by_the_label_of_each_meter() -> None:
    host = FakeHost()
    for number, (device, label) in enumerate(
        [("ACPI000D:00", "Module Power Socket 0"), ("ACPI000D:01", "Grace Power Socket 0")]
    ):
        directory = f"/sys/devices/LNXSYSTM:00/{device}"
        host.files |= {
            f"{directory}/name": "power_meter\n",
            f"{directory}/power1_average": "95000000\n",
            f"{directory}/power1_oem_info": f"{label}\n",
            f"{HWMON_ROOT}/hwmon{number}/uevent": "",
        }
        host.links[f"{HWMON_ROOT}/hwmon{number}/device"] = directory
    assert set(numbers(read_once(HwmonSource(), host).frame)) == {
        (
            "railscope_sensor_average_power_watts",
            ("power_meter", "ACPI000D:00", "Module Power Socket 0"),
        ),
        (
            "railscope_sensor_average_power_watts",
            ("power_meter", "ACPI000D:01", "Grace Power Socket 0"),
        ),
    }


def test_the_number_of_a_chip_does_not_matter() -> None:
    def server(first: int, second: int) -> FakeHost:
        host = FakeHost()
        bus = "/sys/devices/pci0000:00/0000:00:1f.4/i2c-0"
        add_chip(host, first, "spd5118", f"{bus}/0-0050", temp1_input="41000")
        add_chip(host, second, "spd5118", f"{bus}/0-0051", temp1_input="42000")
        add_chip(host, 9, "mlx5", "/sys/devices/pci0000:3a/0000:3b:00.0", temp1_input="55000")
        return host

    found = numbers(read_once(HwmonSource(), server(1, 2)).frame)
    assert found == numbers(read_once(HwmonSource(), server(2, 1)).frame)
    assert found == {
        (TEMPERATURE, ("spd5118", "0000:00:1f.4/0-0050", "temp1")): 41,
        (TEMPERATURE, ("spd5118", "0000:00:1f.4/0-0051", "temp1")): 42,
        (TEMPERATURE, ("mlx5", "0000:3b:00.0", "temp1")): 55,
    }


def test_where_a_chip_sits_does_not_depend_on_the_others() -> None:
    bus = "/sys/devices/pci0000:00/0000:00:1f.4"
    alone = FakeHost()
    add_chip(alone, 4, "spd5118", f"{bus}/i2c-0/0-0051", temp1_input="42000")
    add_chip(alone, 5, "drivetemp", f"{bus}/ata1/host0/target0:0:0/0:0:0:0", temp1_input="30000")
    add_chip(alone, 6, "nvme", f"{bus}/nvme/nvme7", temp1_input="40000")
    assert set(numbers(read_once(HwmonSource(), alone).frame)) == {
        (TEMPERATURE, ("spd5118", "0000:00:1f.4/0-0051", "temp1")),
        (TEMPERATURE, ("drivetemp", "0000:00:1f.4/0:0:0:0", "temp1")),
        (TEMPERATURE, ("nvme", "0000:00:1f.4", "temp1")),
    }


def test_labels_that_come_twice_and_chips_without_a_place_stay_apart() -> None:
    host = FakeHost()
    add_chip(host, 0, "odd", temp1_input="1000", temp1_label="CPU", in1_input="1", in1_label="CPU")
    add_chip(host, 1, "odd", temp1_input="2000")
    assert set(numbers(read_once(HwmonSource(), host).frame)) == {
        (TEMPERATURE, ("odd", "", "temp1")),
        ("railscope_sensor_voltage_volts", ("odd", "", "in1")),
        (TEMPERATURE, ("odd", "#2", "temp1")),
    }


def test_a_disabled_sensor_is_omitted_and_a_failing_one_is_not() -> None:
    host = FakeHost()
    files = add_chip(host, 0, "x", temp1_input=OFF, temp2_input=SLOW_BUS_FAILS, fan1_input="900")
    reader = SourceReader(HwmonSource(), host, ORIGIN)
    assert readings(reader.run().frame) == {
        ("railscope_sensor_fan_rpm", ("x", "", "fan1")): 900,
        (TEMPERATURE, ("x", "", "temp2")): Absent.ERROR,
    }
    host.files[files["fan1_input"]] = OFF
    found = readings(reader.run().frame)
    assert found["railscope_sensor_fan_rpm", ("x", "", "fan1")] is Absent.UNSUPPORTED


def test_a_chip_of_an_old_driver_keeps_its_files_at_the_device() -> None:
    host = FakeHost()
    device = "/sys/devices/platform/it87.552"
    host.files |= {f"{device}/temp1_input": "30000", f"{device}/name": "it87"}
    host.files[f"{HWMON_ROOT}/hwmon0/uevent"] = ""
    host.links[f"{HWMON_ROOT}/hwmon0/device"] = device
    assert numbers(read_once(HwmonSource(), host).frame) == {
        (TEMPERATURE, ("it87", "it87.552", "temp1")): 30
    }


def test_a_virtual_machine_has_none() -> None:
    outcome = read_once(HwmonSource(), FakeHost())
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT


def test_every_file_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = server_tree(tmp_path_factory)
    directory = root / DRIVE / "hwmon3"
    expected: dict[Label, float] = {}
    for file in directory.glob("temp*_*"):
        channel, item = file.name.split("_", 1)
        if item == "label":
            continue
        label = (directory / f"{channel}_label").read_text().strip()
        sensor = ("nvme", "0000:01:00.0", label)
        value = int(file.read_text())
        if item == "alarm":
            expected[ALARM, (*sensor, "any")] = value
        elif item == "input":
            expected[TEMPERATURE, sensor] = value / 1000
        elif value not in (-273_150, 65_261_850):  # 0 K and 65535 K: not a limit
            expected[TEMPERATURE_LIMIT, (*sensor, item)] = value / 1000
    assert len(expected) == 8, sorted(expected)
    assert numbers(read_once(HwmonSource(), LiveHost(Path(root))).frame) == expected
