/// Turns what --model names into a path, and gets models of the catalogue on the command line. Main thread.
#pragma once

#include "app/models/catalog.h"

#include <filesystem>
#include <string>

namespace keyhole {

struct RunOptions;

/// Returns what load_model() takes for --model (see find_model), else for the variable KEYHOLE_MODEL, else
/// the demo model's folder. A model of the
/// catalogue that is not here is fetched with --yes, or when a person at the terminal says so. Throws Error.
std::filesystem::path model_path(const RunOptions& options);
/// Writes the model that KEYHOLE_MODEL chooses into the kept command line, for commands that are written
/// before model_path() is called. Does nothing where a model is named.
void keep_chosen_model(const RunOptions& options);
/// As model_path(), for a name that comes from a lesson: only the catalogue is asked, no path is looked at.
std::filesystem::path catalog_model_path(const RunOptions& options);

/// Gets a model of the catalogue and draws a progress bar. Returns its path. Throws as get_model() does.
std::filesystem::path get_with_progress(const CatalogModel& model);

}  // namespace keyhole
