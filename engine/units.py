"""What units, currencies and scales are called in English: tables for ``numerals``."""

from __future__ import annotations

SCALES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion", "tn": "trillion"}

CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
"""Sign: one, many, one hundredth, many hundredths."""

CODES = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "€": "€", "£": "£", "$": "$"}
"""What may stand behind an amount."""

UNITS: dict[str, tuple[str, str]] = {
    "km": ("kilometer", "kilometers"), "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"), "mm": ("millimeter", "millimeters"),
    "µm": ("micrometer", "micrometers"), "nm": ("nanometer", "nanometers"),
    "mi": ("mile", "miles"), "ft": ("foot", "feet"), "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"), "g": ("gram", "grams"), "mg": ("milligram", "milligrams"),
    "µg": ("microgram", "micrograms"), "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"), "L": ("liter", "liters"), "l": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"), "mL": ("milliliter", "milliliters"),
    "dL": ("deciliter", "deciliters"), "gal": ("gallon", "gallons"),
    "tsp": ("teaspoon", "teaspoons"), "tbsp": ("tablespoon", "tablespoons"),
    "°C": ("degree Celsius", "degrees Celsius"), "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "C": ("degree Celsius", "degrees Celsius"), "F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"), "GB": ("gigabyte", "gigabytes"), "MB": ("megabyte", "megabytes"),
    "KB": ("kilobyte", "kilobytes"), "kB": ("kilobyte", "kilobytes"),
    "TB": ("terabyte", "terabytes"), "PB": ("petabyte", "petabytes"),
    "GiB": ("gibibyte", "gibibytes"), "MiB": ("mebibyte", "mebibytes"),
    "KiB": ("kibibyte", "kibibytes"), "Gb": ("gigabit", "gigabits"), "Mb": ("megabit", "megabits"),
    "kb": ("kilobit", "kilobits"), "Gbps": ("gigabit per second", "gigabits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "kbps": ("kilobit per second", "kilobits per second"), "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"), "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"), "W": ("watt", "watts"), "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"), "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"), "mV": ("millivolt", "millivolts"), "mA": ("milliamp", "milliamps"),
    "mAh": ("milliamp hour", "milliamp hours"), "kJ": ("kilojoule", "kilojoules"),
    "kcal": ("kilocalorie", "kilocalories"), "cal": ("calorie", "calories"),
    "dB": ("decibel", "decibels"), "Pa": ("pascal", "pascals"),
    "kPa": ("kilopascal", "kilopascals"), "psi": ("P S I", "P S I"),
    "ns": ("nanosecond", "nanoseconds"), "µs": ("microsecond", "microseconds"),
    "ms": ("millisecond", "milliseconds"), "s": ("second", "seconds"),
    "sec": ("second", "seconds"), "secs": ("second", "seconds"), "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"), "h": ("hour", "hours"), "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"), "mph": ("mile per hour", "miles per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "fps": ("frame per second", "frames per second"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "bpm": ("beat per minute", "beats per minute"), "px": ("pixel", "pixels"),
    "pts": ("point", "points"), "x": ("time", "times"),
    "K": ("thousand", "thousand"), "k": ("thousand", "thousand"),
    "M": ("million", "million"), "B": ("billion", "billion"), "bn": ("billion", "billion"),
}  # fmt: skip
"""What may stand behind a number: one, many. Upper and lower case are different units."""
