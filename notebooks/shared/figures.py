import warnings

%config InlineBackend.figure_formats = ["svg"]
plt.rcParams["svg.fonttype"] = "none"
warnings.filterwarnings("ignore", message="Glyph .* missing from")
