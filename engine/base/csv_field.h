/// A field of a CSV file. Any thread; knows no table.
#pragma once

#include <string>

namespace keyhole {

/// Returns a field of a CSV line, quoted where necessary.
std::string csv_field(const std::string& text);

}  // namespace keyhole
